// What the programs of the peers on Node.js have in common: PROGRAM drain URL JOBS.

import { readFileSync } from "node:fs";

class Calls {
  #seen = new Set();
  total = 0;
  constructor(expected) {
    this.expected = expected;
    this.allThere = new Promise((resolve) => (this.resolve = resolve));
  }
  add(number) {
    this.total += 1;
    this.#seen.add(number);
    if (this.#seen.size === this.expected) {
      this.ended = performance.now();
      this.resolve();
    }
  }
}

// As they are installed here: an import of another package's package.json may be refused.
function version(name) {
  const file = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(file)).version;
}

export async function work(name, drain) {
  const [what, , amount] = process.argv.slice(2);
  const env = process.env;
  const connection = {
    host: env.PGHOST,
    port: Number(env.PGPORT ?? 5432),
    user: env.PGUSER,
    password: env.PGPASSWORD,
    database: env.PGDATABASE,
  };
  if (what !== "drain") {
    console.log(JSON.stringify({ absent: "it enqueues on connections of its own driver" }));
    return;
  }
  const calls = new Calls(Number(amount));
  const started = await drain(connection, Number(amount), calls);
  const answer = { seconds: (calls.ended - started) / 1000, calls: calls.total };
  answer.version = `${version(name)} (Node.js ${process.versions.node})`;
  console.log(JSON.stringify(answer));
  process.exit(0);
}
