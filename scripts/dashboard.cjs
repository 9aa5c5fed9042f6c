// What people do with the dashboard, done by a browser. Run by scripts/dashboard.sh:
// node dashboard.cjs SAID TOKEN-FILE SCREENSHOTS CHROMIUM PLACE SERVER
// PLACE has the files of the pools; SERVER is the process of the server.
"use strict";
const { chromium } = require("playwright-core");
const assert = require("node:assert");
const { execFile } = require("node:child_process");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");

const [said, tokenFile, shots, executablePath, place, server] = process.argv.slice(2);
const facts = JSON.parse(fs.readFileSync(said, "utf8").split("\n")[0]);
const base = "http://" + facts.http + "/";
const token = fs.readFileSync(tokenFile, "utf8").trim();

// A NULL call of NFSv3 with its record mark: so that there are a client and operations.
function nullCall() {
  const words = [0x80000028, 9, 0, 2, 100003, 3, 0, 0, 0, 0, 0];
  const bytes = Buffer.alloc(44);
  words.forEach((word, at) => bytes.writeUInt32BE(word >>> 0, 4 * at));
  return bytes;
}
async function beClient() {
  const [host, port] = [facts.nfs.slice(0, facts.nfs.lastIndexOf(":")), facts.nfs.slice(facts.nfs.lastIndexOf(":") + 1)];
  const socket = net.connect(Number(port), host);
  await new Promise((done) => socket.on("connect", done));
  for (let count = 0; count < 500; count += 1) socket.write(nullCall());
  return socket;
}

const port = facts.nfs.slice(facts.nfs.lastIndexOf(":") + 1);
const urlOf = (name) => "nfs://127.0.0.1/rots/" + name + "?nfsport=" + port + "&mountport=" + port;
// Runs a program; resolves to what went wrong.
const ran = (...command) => new Promise((done) => execFile(command[0], command.slice(1), { timeout: 60000 }, (error) => done(error)));
// Copies a file into the pool that rots.
const copyIn = (from, name) => ran("nfs-cp", from, urlOf(name));
// Makes a request slow: the server stands still while it has some to answer.
async function beSlow() {
  const from = path.join(place, "large");
  fs.writeFileSync(from, Buffer.alloc(64 << 20, 7));
  for (let time = 0; time < 5; time += 1) {
    let isDone = false;
    const copied = copyIn(from, "slow").finally(() => { isDone = true; });
    for (let stop = 0; stop < 10 && !isDone; stop += 1) {
      await sleep(15 + stop);
      process.kill(Number(server), "SIGSTOP");
      await sleep(300);
      process.kill(Number(server), "SIGCONT");
    }
    assert.strictEqual(await copied, null);
    const response = await fetch(base + "api/v1/slow", { headers: { Authorization: "Bearer " + token } });
    if ((await response.json()).list.length > 0) return;
  }
  throw new Error("no request was slow");
}
// Two blocks of a file rot on the device.
async function rot() {
  const pattern = Buffer.from("this is what will rot");
  const from = path.join(place, "rotten");
  fs.writeFileSync(from, Buffer.alloc(65536, pattern));
  assert.strictEqual(await copyIn(from, "rotten"), null);
  const pool = fs.openSync(path.join(place, "rots.hf"), "r+");
  const piece = Buffer.alloc(1 << 20);
  const found = [];
  for (let at = 0; found.length === 0 && at < (1 << 30); at += piece.length) {
    const length = fs.readSync(pool, piece, 0, piece.length, at);
    // The file begins there, and not in the middle of the pattern.
    for (let page = 0; page < length; page += 4096) if (piece.subarray(page).indexOf(pattern) === 0) found.push(at + page);
  }
  assert(found.length > 0, "the file is not on the device");
  for (const place of [found[0] + 100, found[0] + 16384 + 100]) fs.writeSync(pool, "rot", place);
  fs.closeSync(pool);
}

async function main() {
  const client = await beClient();
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
  const page = await context.newPage();
  const troubles = [];
  const elsewhere = [];
  const asked = [];
  page.on("console", (message) => { if (message.type() === "error") troubles.push(message.text()); });
  page.on("pageerror", (error) => troubles.push(String(error)));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(base) && !url.startsWith("data:")) elsewhere.push(url);
    if (url.startsWith(base + "api/")) asked.push(url.slice(base.length - 1));
  });
  // A browser logs each request that is refused. One is expected of what `act` does, and no other.
  const refused = async (status, act) => {
    const start = troubles.length;
    const logged = page.waitForEvent("console", (message) => message.text().includes("status of " + status + " "));
    await act();
    await logged;
    // The others, if there are any, have come too.
    await page.waitForTimeout(500);
    const told = troubles.splice(start);
    assert(told.length === 1 && told[0].includes("status of " + status + " "), "one answer " + status + " was expected: " + told);
  };

  // Without the token nothing is asked and there is nothing to see, and a wrong one is told.
  await page.goto(base);
  await page.waitForSelector("#enter:not([hidden])");
  assert(await page.locator("#main").isHidden());
  assert.deepStrictEqual(asked, [], "the page asked without a token");
  await page.keyboard.type("0".repeat(64));
  await refused(401, async () => {
    await page.keyboard.press("Enter");
    await page.waitForSelector("#token-wrong:not([hidden])");
  });
  // The answer to a wrong token may come late: it does not make the page forget the right one.
  const wrong = "g".repeat(64);
  let late = null;
  await page.route("**/api/v1/server", async (route) => {
    if (route.request().headers().authorization !== "Bearer " + wrong) return route.continue();
    await new Promise((done) => { late = done; });
    return route.continue();
  });
  await page.fill("#token", wrong);
  await page.keyboard.press("Enter");
  while (!late) await page.waitForTimeout(20);

  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#main:not([hidden])");
  await refused(401, async () => late());
  assert(await page.locator("#main").isVisible(), "a late answer made the page forget the token");
  await page.unroute("**/api/v1/server");
  const has = async (where, text) => {
    try {
      await page.locator(where, { hasText: text }).first().waitFor({ timeout: 20000 });
    } catch (error) {
      console.error(where + " has no " + text + ", but: " + await page.locator(where).allTextContents());
      throw error;
    }
  };
  await has("#health", "all is well");
  // A label is text, whatever is in it.
  await has("#pools h3", "<b>pool</b>");
  assert.strictEqual(await page.locator("#pools h3 b").count(), 0);
  await has("#filesets", "home/ann");
  await has("#filesets", "home@monday");
  await has("#exports", "/home");
  await has("#schedules", "home keeps 24 hourly, 7 daily");
  await has("#scrubs", "monthly (default)");
  await has("#clients", "127.0.0.1");

  // By the keyboard alone: a fileset, made and deleted.
  await page.locator("summary", { hasText: "Make a fileset" }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.type("work");
  await page.keyboard.press("Enter");
  await has("#filesets td", "work");
  await page.locator("button[aria-label='Delete work']").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("#sure[open]");
  // Whoever errs leaves it by Enter.
  await page.keyboard.press("Enter");
  assert(await page.locator("#sure").isHidden());
  await has("#filesets td", "work");
  await page.locator("button[aria-label='Delete work']").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await has("#said", "work is deleted");

  // A clone, an export, a refusal that is told.
  await page.locator("button[aria-label='Clone home/ann']").click();
  await has("#filesets td", "home/ann@page-");
  await page.locator("summary", { hasText: "Export a fileset" }).click();
  await page.fill("#export-form [name=name]", "/ann");
  await page.selectOption("#export-form [name=fileset]", "home/ann");
  await page.fill("#export-form [name=to]", "192.0.2.0/24");
  await page.locator("#export-form button").click();
  await has("#exports td", "/ann");
  await page.fill("#export-form [name=name]", "/ann");
  await refused(422, async () => {
    await page.locator("#export-form button").click();
    await has("#said", "already");
  });
  await page.fill("#any", '{"do": "export-list", "after": ""}');
  await page.locator("#any-form button").click();
  await has("#any-told", "192.0.2.0/24");

  await has("#events", "Nothing went wrong.");
  // A device is replaced: a refusal is told in place, and a job copies.
  const second = path.join(place, "second.hf"), third = path.join(place, "third.hf");
  await page.locator("button[aria-label='Replace " + second + "']").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("#replace[open]");
  await page.keyboard.type("third.hf");
  await page.keyboard.press("Enter");
  assert(await page.evaluate(() => document.querySelector("#replace-form").matches(":invalid")), "a path without a / is taken");
  await page.fill("#replace-form [name=to]", path.join(place, "pool.hf"));
  await refused(422, async () => {
    await page.keyboard.press("Enter");
    await page.waitForSelector("#replace-wrong:not([hidden])");
  });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.screenshot({ path: path.join(shots, "replace.png") });
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.locator("#replace-no").click();
  // Escape while the server is at it: its answer is told, and says nothing in the dialog of another device.
  let answer = null;
  await page.route("**/control", async (route) => {
    await new Promise((done) => { answer = done; });
    return route.continue();
  });
  await page.locator("button[aria-label='Replace " + second + "']").click();
  await page.fill("#replace-form [name=to]", path.join(place, "pool.hf"));
  await page.keyboard.press("Enter");
  while (!answer) await page.waitForTimeout(20);
  await page.keyboard.press("Escape");
  assert(await page.locator("#replace").isHidden());
  await has("#said", "The server is still at it");
  await page.locator("button[aria-label='Replace " + path.join(place, "pool.hf") + "']").click();
  assert(await page.locator("#replace-yes").isEnabled(), "one request keeps another device from being replaced");
  await refused(422, async () => {
    answer();
    await has("#said", second + " is not replaced: ");
  });
  assert(await page.locator("#replace").isVisible(), "the answer of one dialog closed another");
  assert(await page.locator("#replace-wrong").isHidden(), "the answer of one dialog is told in another");
  await page.unroute("**/control");
  await page.locator("#replace-no").click();
  await page.locator("button[aria-label='Replace " + second + "']").click();
  await page.fill("#replace-form [name=to]", third);
  await page.keyboard.press("Enter");
  await has("#said", second + " is replaced by " + third);
  assert(await page.locator("#replace").isHidden());
  await has(".member", third);
  assert.strictEqual(await page.locator(".member", { hasText: second }).count(), 0);
  // What lies on one device alone cannot be replaced.
  assert.strictEqual(await page.locator("button[aria-label='Replace " + path.join(place, "rots.hf") + "']").count(), 0);

  // A slow request, and what cannot be read, by file.
  await has("#slow", "No request took 250 ms or longer.");
  await beSlow();
  await has("#slow td", "/rots");
  await has("#slow td", "127.0.0.1");
  await rot();
  for (let time = 0; time < 2; time += 1) assert(await ran("nfs-cat", urlOf("rotten")), "what has rotted is read");
  await has("#events li b", "/rotten");
  await has("#events li", "error, 2 times");
  const told = (await page.locator("#events li").allTextContents()).filter((text) => text.includes("rotten"));
  assert(told.length === 1 && told[0].includes("rots, root:/rotten, bytes 0 to 65535"), "what rotted is told as: " + told);

  // Files of equal path are told apart by pool and fileset.
  const [one, another] = await (await fetch(base + "api/v1/pools", { headers: { Authorization: "Bearer " + token } })).json();
  const now = Math.floor(Date.now() / 1000);
  const alike = [[one.id, "root"], [another.id, "root"], [one.id, "home"], [one.id, "home"]]
    .map(([pool, fileset]) => ({ seconds: now, is_error: true, text: "it is bad", pool, fileset, path: "/same", bytes: [0, 4095] }));
  await page.route("**/api/v1/events", (route) => route.fulfill({ json: alike }));
  await has("#events li b", "home:/same");
  const apart = (await page.locator("#events li b").allTextContents()).sort();
  assert.deepStrictEqual(apart, ["<b>pool</b>, home:/same", "<b>pool</b>, root:/same", "rots, root:/same"]);
  await page.unroute("**/api/v1/events");

  // Two samples, so that there is a line.
  for (let count = 0; count < 3; count += 1) {
    for (let call = 0; call < 300; call += 1) client.write(nullCall());
    await page.waitForTimeout(5000);
  }
  await page.waitForTimeout(6500);
  assert((await page.locator("#latency-text").textContent()).includes("99 of 100 within"));
  const drawn = await page.locator("#rate path.one").getAttribute("d");
  assert(drawn && drawn.includes("L"), "no line is drawn: " + drawn);
  const shoot = async (name) => {
    await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
    await page.screenshot({ path: path.join(shots, name + ".png"), fullPage: true });
  };
  await shoot("light");
  await page.emulateMedia({ colorScheme: "dark" });
  await shoot("dark");
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForTimeout(5500);
  await shoot("phone");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert(wide <= 0, "the page is " + wide + " pixels wider than a phone");
  // Everything that can be pressed has a name and is large enough for a finger.
  const small = await page.evaluate(() => Array.from(document.querySelectorAll("button, input, select, textarea, summary"))
    .filter((it) => it.offsetParent && it.type !== "checkbox" && it.getBoundingClientRect().height < 28).map((it) => it.outerHTML));
  assert.deepStrictEqual(small, []);

  // A page of another site, with the token: its browser gives it nothing, and changes nothing.
  const other = http.createServer((_, response) => { response.setHeader("content-type", "text/html"); response.end("<!doctype html>"); });
  await new Promise((done) => other.listen(0, "127.0.0.1", done));
  const hostile = await context.newPage();
  await hostile.goto("http://127.0.0.1:" + other.address().port + "/");
  const got = await hostile.evaluate(async ([base, token]) => {
    const tries = [];
    const pools = base + "api/v1/pools";
    const body = JSON.stringify({ do: "fileset-create", name: "stolen", properties: {} });
    for (const options of [{ headers: { Authorization: "Bearer " + token } }, {}, { mode: "no-cors" },
      { method: "POST", body, headers: { Authorization: "Bearer " + token, "Content-Type": "application/json" } },
      { method: "POST", body, mode: "no-cors", headers: { "Content-Type": "text/plain" } }]) {
      try { const response = await fetch(pools, options); tries.push(response.type + " " + (await response.text())); } catch (error) { tries.push("refused"); }
    }
    return tries;
  }, [base, token]);
  for (const what of got) assert(what === "refused" || what === "opaque ", "a page of another site got: " + what);
  await hostile.close();
  assert.strictEqual(await page.locator("#filesets td", { hasText: "stolen" }).count(), 0);
  const framed = await context.newPage();
  await framed.goto("http://127.0.0.1:" + other.address().port + "/");
  await framed.evaluate((base) => { const frame = document.createElement("iframe"); frame.src = base; document.body.append(frame); }, base);
  await framed.waitForTimeout(1000);
  const inside = framed.frames().find((frame) => frame.url().startsWith(base));
  assert(!inside || (await inside.locator("h1").count()) === 0, "the dashboard was shown in a page of another site");

  assert.deepStrictEqual(troubles, [], "the page has errors");
  assert.deepStrictEqual(elsewhere, [], "the page asked others");
  await page.locator("#leave").click();
  assert(await page.locator("#main").isHidden());
  assert.strictEqual(await page.evaluate(() => sessionStorage.length), 0);
  await browser.close();
  other.close();
  client.destroy();
  console.log("The dashboard does what it should; screenshots are in " + shots + ".");
}
main().catch((error) => { console.error(error); process.exit(1); });
