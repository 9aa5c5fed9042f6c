// What people do with the dashboard, done by a browser. Run by scripts/dashboard.sh:
// node dashboard.cjs SAID TOKEN-FILE SCREENSHOTS CHROMIUM
"use strict";
const { chromium } = require("playwright-core");
const assert = require("node:assert");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const path = require("node:path");

const [said, tokenFile, shots, executablePath] = process.argv.slice(2);
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
  const has = (where, text) => page.locator(where, { hasText: text }).first().waitFor({ timeout: 20000 });
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
