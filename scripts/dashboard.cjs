// What people do with the dashboard, done by a browser. Run by scripts/dashboard.sh:
// node dashboard.cjs SAID TOKEN-FILE SCREENSHOTS CHROMIUM PLACE SERVER PROGRAM
// PLACE has the files of the pools; SERVER is the process of the server. PROGRAM shows what a button has done.
"use strict";
const { chromium } = require("playwright-core");
const assert = require("node:assert");
const { execFile, execFileSync } = require("node:child_process");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");

const [said, tokenFile, shots, executablePath, place, server, program] = process.argv.slice(2);
const facts = JSON.parse(fs.readFileSync(said, "utf8").split("\n")[0]);
const base = "http://" + facts.http + "/";
const token = fs.readFileSync(tokenFile, "utf8").trim();

const at = (name) => path.join(place, name);
const [tank, rots] = [at("pool.hf"), at("rots.hf")];
// What a command prints about the pool, as objects.
const cli = (...words) => execFileSync(program, ["--json", ...words], { encoding: "utf8" }).split("\n").filter(Boolean).flatMap((line) => JSON.parse(line));
const list = (what, pool = tank) => cli(what, "list", pool);
const named = (what, name) => list(what).find((it) => it.name === name);
// Waits until `is` returns something.
async function until(what, is) {
  for (let time = 0; time < 100; time += 1) {
    const found = is();
    if (found) return found;
    await sleep(200);
  }
  throw new Error("the command line does not show: " + what);
}
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
const urlOf = (name, of = "rots") => "nfs://127.0.0.1/" + of + "/" + name + "?nfsport=" + port + "&mountport=" + port;
// Runs a program; resolves to what went wrong.
const ran = (...command) => new Promise((done) => execFile(command[0], command.slice(1), { timeout: 60000 }, (error) => done(error)));
// Copies a file into the pool that rots.
const copyIn = (from, name, of) => ran("nfs-cp", from, urlOf(name, of));
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
// Parts of a file rot on one device: `rotten` times 16 KiB.
async function rot(device, of, parts) {
  const pattern = Buffer.from("this is what will rot in " + of);
  fs.writeFileSync(at("rotten"), Buffer.alloc(65536, pattern));
  assert.strictEqual(await copyIn(at("rotten"), "rotten", of), null);
  const pool = fs.openSync(device, "r+");
  const piece = Buffer.alloc(1 << 20);
  let found = -1;
  for (let from = 0; found < 0 && from < (1 << 30); from += piece.length) {
    const length = fs.readSync(pool, piece, 0, piece.length, from);
    // The file begins there, and not in the middle of the pattern.
    for (let page = 0; found < 0 && page < length; page += 4096) if (piece.subarray(page).indexOf(pattern) === 0) found = from + page;
  }
  assert(found >= 0, "the file is not on the device");
  for (let part = 0; part < parts; part += 1) fs.writeSync(pool, "rot", found + 16384 * part + 100);
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
  const has = async (where, text) => {
    try {
      await page.locator(where, { hasText: text }).first().waitFor({ timeout: 20000 });
    } catch (error) {
      console.error(where + " has no " + text + ", but: " + await page.locator(where).allTextContents());
      throw error;
    }
  };
  const press = async (label) => {
    // What was said before is no answer to this.
    await page.evaluate(() => { document.getElementById("said").textContent = ""; });
    await page.locator("button[aria-label='" + label + "']").first().click();
  };
  // Presses a button, fills the dialog, sends it and waits for what is said.
  const fill = async (label, values) => {
    await press(label);
    await page.waitForSelector("dialog[open]");
    for (const [name, value] of Object.entries(values)) {
      const field = page.locator("dialog [name=" + name + "]");
      if (typeof value === "boolean") await field.setChecked(value);
      else if (await field.evaluate((it) => it.tagName) === "SELECT") await field.selectOption(value);
      else await field.fill(value);
    }
  };
  const send = () => page.locator("dialog .main").click();
  const done = async (label, values, said) => {
    await fill(label, values);
    await send();
    await has("#said", said);
    assert.strictEqual(await page.locator("dialog").count(), 0, "the dialog of " + label + " stays");
  };
  const shoot = async (name, isWhole = true) => {
    if (isWhole) await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
    await page.screenshot({ path: path.join(shots, name + ".png"), fullPage: isWhole });
  };
  const headers = { Authorization: "Bearer " + token };

  // Without the token nothing is asked, there is nothing to see but how to get one, and nothing is changed.
  const filesets = () => list("fileset").map((it) => it.name).join();
  const before = filesets();
  await page.goto(base);
  await page.waitForSelector("#enter:not([hidden])");
  await has("#enter", "sudo cat /var/lib/holdfast/token");
  assert(await page.locator("#main").isHidden());
  assert.deepStrictEqual(asked, [], "the page asked without a token");
  await shoot("no-token");
  const [one, another] = await (await fetch(base + "api/v1/pools", { headers })).json();
  const create = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ do: "fileset-create", name: "stolen", properties: {} }) };
  assert.strictEqual((await fetch(base + "api/v1/pools/" + one.id + "/control", create)).status, 401);
  assert.strictEqual(filesets(), before, "something was changed without a token");
  // A wrong one is told.
  await page.focus("#token");
  await page.keyboard.type("0".repeat(64));
  await refused(401, async () => {
    await page.keyboard.press("Enter");
    await has("#token-wrong", "does not accept this token");
  });
  // The answer to a wrong token may come late: it does not make the page forget the right one.
  const wrong = "g".repeat(64);
  let late = null;
  await page.route("**/api/v1/server", async (route) => {
    if (route.request().headers().authorization !== "Bearer " + wrong) return route.continue();
    await new Promise((go) => { late = go; });
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
  // A server that refuses, and one that does not answer: the page says so, and goes on by itself.
  await refused(403, async () => {
    await page.route("**/api/v1/server", (route) => route.fulfill({ status: 403, json: { error: "pages of other sites may ask nothing here" } }));
    await has("#silent", "Open it at the server's own address");
    await page.unroute("**/api/v1/server");
  });
  await page.route("**/api/v1/server", (route) => route.abort());
  await has("#silent", "The server does not answer");
  await page.unroute("**/api/v1/server");
  await page.locator("#silent").waitFor({ state: "hidden", timeout: 20000 });
  for (let at; (at = troubles.findIndex((text) => text.includes("ERR_FAILED"))) >= 0;) troubles.splice(at, 1);

  await has("#health", "all is well");
  await has("#warnings", "No warnings");
  await has("#jobs", "No job is running");
  await has("#events", "No warning or error");
  // Warnings, jobs, pools, in this order. There is no box for requests of one's own.
  const order = await page.locator("main h2").allTextContents();
  assert.deepStrictEqual(order.slice(0, 2), ["Warnings", "Jobs"]);
  assert(order[2].startsWith("<b>pool"), "a label is text, whatever is in it: " + order);
  assert.strictEqual(await page.locator("main textarea, h2 b").count(), 0);
  await has("#pools td", "home/ann");
  await has("#pools td", "24 hourly, 7 daily");
  await has("#pools", "By schedule: monthly");
  await has("#pools .title", "Disk group 0 · mirror · data, metadata, journal");
  await has("#exports td", "/home");
  await has("#clients td", "127.0.0.1");
  const mine = "<b>pool";

  // By the keyboard alone: a fileset, made and deleted. Its name is to be typed.
  const deleteWork = page.locator("button[aria-label='Delete work']");
  await page.locator("button[aria-label='New fileset in " + mine + "']").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.type("work");
  await page.keyboard.press("Tab");
  await page.keyboard.type("lots");
  await page.keyboard.press("Enter");
  await has("dialog [role=alert]", "“lots” is no size");
  for (let times = 0; times < 4; times += 1) await page.keyboard.press("Backspace");
  await page.keyboard.type("1.5G");
  await page.keyboard.press("Enter");
  await has("#said", "work is created");
  assert.strictEqual(named("fileset", "work").quota_bytes, 3 << 29);
  await deleteWork.focus();
  await page.keyboard.press("Enter");
  await has("dialog", "the fileset work of <b>pool with 3 files and directories");
  await page.keyboard.type("wor");
  await page.keyboard.press("Enter");
  assert(await page.locator("dialog .main").isDisabled(), "a part of the name is enough");
  await page.keyboard.press("Escape");
  assert(named("fileset", "work"), "it is deleted without its name");
  await deleteWork.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.type("work");
  await page.keyboard.press("Enter");
  await has("#said", "work is deleted");
  await until("work is gone", () => !named("fileset", "work"));

  // Quota, schedule, export.
  await done("Quota of home/ann", { quota: "20M", reservation: "1M", isReadOnly: true }, "The quota of home/ann is set");
  let ann = named("fileset", "home/ann");
  assert.deepStrictEqual([ann.quota_bytes, ann.reservation_bytes, ann.is_read_only], [20 << 20, 1 << 20, true]);
  await done("Quota of home/ann", { reservation: "", isReadOnly: false }, "The quota of home/ann is set");
  ann = named("fileset", "home/ann");
  assert.deepStrictEqual([ann.quota_bytes, ann.reservation_bytes, ann.is_read_only], [20 << 20, null, false]);
  await done("Schedule of home/ann", { daily: "0", monthly: "3" }, "The schedule of home/ann is set");
  assert.strictEqual(list("schedule").find((it) => it.fileset === "home/ann").keep.monthly, 3);
  await done("Export home/ann", { name: "/ann", to: "192.0.2.0/24, 127.0.0.0/8", squash: "none", rw: true }, "home/ann is exported as /ann");
  const exported = () => list("export").find((it) => it.export.name === "/ann");
  assert.deepStrictEqual(exported().export.to, ["192.0.2.0/24", "127.0.0.0/8"]);
  await fill("Export home/ann", { name: "/ann" });
  await refused(422, async () => {
    await send();
    await has("dialog [role=alert]", "already");
  });
  await page.keyboard.press("Escape");
  await press("Copy mount line of /ann");
  await has("#said", "127.0.0.1:/ann DIRECTORY");

  // Snapshots: taken by name, measured, cloned, restored, deleted. An export forbids a restore, and the dialog says so.
  await done("Snapshot of home/ann", { snapshot: "before", isBelow: false }, "home/ann@before is taken");
  assert(named("snapshot", "home/ann@before"));
  await done("Snapshot of home", { snapshot: "all", isBelow: true }, "home@all is taken");
  assert(named("snapshot", "home/ann@all"));
  await done("Quota of home/ann", { quota: "8K" }, "The quota of home/ann is set");
  await has("#warnings", "The fileset home/ann has used");
  await done("Quota of home/ann, from the warning", { quota: "" }, "The quota of home/ann is set");
  assert.strictEqual(named("fileset", "home/ann").quota_bytes, null);
  await press("Snapshots of home/ann");
  await has("#pools td", "only in one of them");
  await page.locator("td.inner td", { hasText: "not measured" }).waitFor({ state: "detached" });
  await done("Clone home/ann@before", { to: "trial" }, "trial is a clone of home/ann@before");
  assert.strictEqual(named("fileset", "trial").origin, "home/ann@before");
  cli("fileset", "create", tank + ":home/ann/below");
  await press("Restore home/ann@before");
  await has("dialog", "It is in use: export /ann. End that first.");
  assert(await page.locator("dialog .main").isDisabled());
  await page.keyboard.press("Escape");
  await has("#pools td", "home/ann/below");
  await press("Delete home/ann");
  await has("dialog", "Below it: home/ann/below");
  await shoot("dialog", false);
  await page.keyboard.press("Escape");
  await done("Remove the export /ann", { confirm: "/ann" }, "/ann is exported no more");
  assert(!exported());
  await done("Quota of home/ann", { isReadOnly: true }, "The quota of home/ann is set");
  const uuid = named("fileset", "home/ann").origin;
  assert.notStrictEqual(uuid, "home/ann@before");
  await done("Restore home/ann@before", { confirm: "home/ann" }, "home/ann is restored to home/ann@before");
  assert.strictEqual(named("fileset", "home/ann").origin, "home/ann@before");
  await press("Delete home/ann@all");
  await has("dialog", "that only this snapshot holds become free");
  await page.fill("dialog [name=confirm]", "home/ann@all");
  await send();
  await has("#said", "home/ann@all is deleted");
  await until("home/ann@all is gone", () => !named("snapshot", "home/ann@all"));

  // Scrubs: one finds what has rotted on one device, and repairs it from the other. The errors are a warning until they are cleared.
  await done("Scrub schedule of " + mine, { every: "weekly" }, "The scrub schedule is set");
  assert(list("schedule").some((it) => it.scrub && it.scrub.every === "weekly"));
  const second = at("second.hf"), third = at("third.hf");
  const device = (of) => list("device").find((it) => it.path === of) || {};
  await rot(second, "data", 3);
  await press("Scrub " + mine);
  await has("#said", "A scrub of <b>pool has started");
  await until("the scrub repairs", () => device(second).checksum_errors > 0 && list("job").every((it) => it.name !== "scrub"));
  await has("#warnings", second + " (slot 1) has errors");
  await has("#pools", "repaired, nothing lost");
  await press("Clear errors of " + second);
  await has("#said", "are cleared");
  assert.strictEqual(device(second).checksum_errors, 0);

  // Devices: a spare, a further copy, a new disk group. What is refused is told in the dialog.
  await fill("Add devices to " + mine, { way: "spare", paths: "spare.hf" });
  await send();
  await has("dialog [role=alert]", "A path begins with /.");
  await page.keyboard.press("Escape");
  await done("Add devices to " + mine, { way: "spare", paths: at("spare.hf") }, "1 device is added");
  assert.strictEqual(device(at("spare.hf")).state, "spare");
  await has("#pools .title", "Spares · 1 ready");
  await done("Remove the spare " + at("spare.hf"), { confirm: at("spare.hf") }, "is no spare any more");
  assert.strictEqual(device(at("spare.hf")).state, undefined);
  await done("Add devices to " + mine, { way: "group raid5", paths: ["r1", "r2", "r3"].map(at).join("\n"), size: "256M" }, "3 devices are added");
  assert.strictEqual(list("group").find((it) => it.number === 1).kind, "raid5");
  await done("Add devices to " + mine, { way: "copy 0", paths: at("copy.hf") }, "1 device is added");
  await until("the copy is whole", () => device(at("copy.hf")).state === "online");
  cli("device", "remove", tank, at("copy.hf"));

  // A device fails: a warning with what helps. It is brought back, and replaced.
  cli("device", "fail", tank, second);
  await has("#warnings", "The pool is degraded: " + second);
  await has("#pools .pill", "degraded");
  await shoot("degraded");
  await press("Bring back " + second + ", from the warning");
  await has("#said", "is back");
  await until("it is back", () => device(second).state === "online");
  await has("#warnings", "No warnings");
  await page.locator("button[aria-label='Replace " + second + "']").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await page.keyboard.type("third.hf");
  await page.keyboard.press("Enter");
  assert(await page.evaluate(() => document.querySelector("dialog form").matches(":invalid")), "a path without a / is taken");
  await page.fill("dialog [name=to]", tank);
  await refused(422, async () => {
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog [role=alert]:not([hidden])");
  });
  await page.keyboard.press("Escape");
  // Escape while the server is at it: its answer is told, and says nothing in the dialog of another device.
  let answer = null;
  await page.route("**/control", async (route) => {
    if (!route.request().postData().includes("device-replace")) return route.continue();
    await new Promise((go) => { answer = go; });
    return route.continue();
  });
  await fill("Replace " + second, { to: tank });
  await page.keyboard.press("Enter");
  while (!answer) await page.waitForTimeout(20);
  await page.keyboard.press("Escape");
  await has("#said", "The server is still at it");
  await press("Replace " + tank);
  assert(await page.locator("dialog .main").isEnabled(), "one request keeps another device from being replaced");
  await refused(422, async () => {
    answer();
    await has("#said", "Replace " + second + ": ");
  });
  assert.strictEqual(await page.locator("dialog[open] [role=alert][hidden]").count(), 1, "the answer of one dialog is told in another");
  await page.unroute("**/control");
  await page.keyboard.press("Escape");
  // A job of the slowest pace, which is paused and goes on.
  await done("Replace " + second, { to: third }, second + " is replaced by " + third);
  const rebuild = await until("a rebuild", () => list("job").find((it) => it.name.includes("third.hf")));
  cli("job", "pace", tank, String(rebuild.id), "1");
  const isPaused = () => (list("job").find((it) => it.id === rebuild.id) || {}).is_paused;
  await has("#jobs td", "rebuilding " + third);
  await has("#jobs td", "running");
  await shoot("job");
  await press("Pause " + rebuild.name + " of " + mine);
  await has("#jobs td", "paused");
  assert.strictEqual(isPaused(), true);
  await press("Resume " + rebuild.name + " of " + mine);
  await has("#jobs td", "running");
  assert.strictEqual(isPaused(), false);
  cli("job", "pace", tank, String(rebuild.id), "100");
  await until("the rebuild has ended", () => device(third).state === "online");
  assert.strictEqual(device(second).state, undefined);
  await has("#pools td", third);
  // What lies on one device alone cannot be replaced.
  assert.strictEqual(await page.locator("button[aria-label='Replace " + rots + "']").count(), 0);

  // A slow request, and what cannot be read: one line for a file.
  await page.locator("summary", { hasText: "Slow requests" }).click();
  await has("#slow", "No request took 250 ms or longer.");
  await beSlow();
  await has("#slow td", "/rots");
  await has("#slow td", "127.0.0.1");
  await rot(rots, "rots", 2);
  for (let time = 0; time < 2; time += 1) assert(await ran("nfs-cat", urlOf("rotten")), "what has rotted is read");
  await has("#events li b", "/rotten");
  await has("#events li", "(2 times)");
  const told = (await page.locator("#events li").allTextContents()).filter((text) => text.includes("/rotten"));
  assert(told.length === 1 && told[0].includes("rots:root/rotten, bytes 0 to 65,535"), "what rotted is told as: " + told);
  // Files of equal path are told apart by pool and fileset. A notice that fails is a warning.
  const now = Math.floor(Date.now() / 1000);
  const alike = [[one.id, "root"], [another.id, "root"], [one.id, "home"], [one.id, "home"]]
    .map(([pool, fileset]) => ({ seconds: now, is_error: true, text: "it is bad", pool, fileset, path: "/same", bytes: [0, 4095] }));
  alike.push({ seconds: now, is_error: false, text: "`top` shows <b>it</b> (slot 3)" });
  alike.push({ seconds: now, is_error: true, text: "a notice is not told: no route", pool: rots });
  await page.route("**/api/v1/events", (route) => route.fulfill({ json: alike }));
  await has("#events li b", mine + ":home/same");
  const apart = (await page.locator("#events li b").allTextContents()).sort();
  assert.deepStrictEqual(apart, [mine + ":home/same", mine + ":root/same", "rots", "rots:root/same"]);
  await has("#events li", "top shows <b>it</b> (slot 3).");
  await has("#warnings li", "1 notice could not be delivered in the last day");
  await page.unroute("**/api/v1/events");

  // Two samples, so that there is a line. Bytes are read and written, so there are bytes a second.
  for (let count = 0; count < 3; count += 1) {
    for (let call = 0; call < 300; call += 1) client.write(nullCall());
    assert.strictEqual(await copyIn(at("rotten"), "copy" + count), null);
    assert.strictEqual(await ran("nfs-cat", urlOf("copy" + count)), null);
    await page.waitForTimeout(5000);
  }
  await page.waitForTimeout(6500);
  const legends = await page.locator("#charts .legend").allTextContents();
  assert(/read .*\/swritten .*\/s/.test(legends[0]), "throughput: " + legends);
  const history = await (await fetch(base + "api/v1/history", { headers })).json();
  for (const kind of ["read_rate_bytes", "write_rate_bytes"]) assert(history.some((it) => it[kind] * 5 >= 65536), kind + " counts no bytes");
  const drawn = await page.locator("#charts path.one").first().getAttribute("d");
  assert(drawn && drawn.includes("L"), "no line is drawn: " + drawn);
  await page.locator("#charts svg").first().hover();
  assert.strictEqual(await page.locator("#charts line.at").count(), 1, "nothing shows what the pointer is on");
  await page.mouse.move(0, 0);
  await shoot("light");
  await page.emulateMedia({ colorScheme: "dark" });
  await shoot("dark");
  await page.emulateMedia({ colorScheme: "light" });
  for (const width of [390, 360]) {
    await page.setViewportSize({ width, height: 844 });
    await page.waitForTimeout(300);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert(wide <= 0, "the page is " + wide + " pixels wider than a phone of " + width);
    if (width === 390) await shoot("phone");
  }
  await press("Snapshot of home");
  await shoot("phone-dialog", false);
  await page.keyboard.press("Escape");
  // Everything that can be pressed has a name and is large enough for a finger.
  const small = await page.evaluate(() => Array.from(document.querySelectorAll("button, input, select, textarea, summary"))
    .filter((it) => it.offsetParent && it.type !== "checkbox" && it.getBoundingClientRect().height < 28).map((it) => it.outerHTML));
  assert.deepStrictEqual(small, []);

  // A page of another site, with the token: its browser gives it nothing, and changes nothing.
  const site = http.createServer((_, response) => { response.setHeader("content-type", "text/html"); response.end("<!doctype html>"); });
  await new Promise((done) => site.listen(0, "127.0.0.1", done));
  const hostile = await context.newPage();
  await hostile.goto("http://127.0.0.1:" + site.address().port + "/");
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
  assert(!named("fileset", "stolen"), "a page of another site made a fileset");
  const framed = await context.newPage();
  await framed.goto("http://127.0.0.1:" + site.address().port + "/");
  await framed.evaluate((base) => { const frame = document.createElement("iframe"); frame.src = base; document.body.append(frame); }, base);
  await framed.waitForTimeout(1000);
  const inside = framed.frames().find((frame) => frame.url().startsWith(base));
  assert(!inside || (await inside.locator("h1").count()) === 0, "the dashboard was shown in a page of another site");

  assert.deepStrictEqual(troubles, [], "the page has errors");
  assert.deepStrictEqual(elsewhere, [], "the page asked others");
  await page.locator("#leave").click();
  assert(await page.locator("#main").isHidden());
  assert.strictEqual(await page.locator("#pools section, #exports td").count(), 0, "facts stay in the page");
  assert.strictEqual(await page.evaluate(() => sessionStorage.length), 0);
  await browser.close();
  site.close();
  client.destroy();
  console.log("The dashboard does what it should; screenshots are in " + shots + ".");
}
main().catch((error) => { console.error(error); process.exit(1); });
