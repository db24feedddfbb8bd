// pg-boss in batches, fetching without a pause while batches are full.
import { PgBoss } from "pg-boss";
import { work } from "./program.mjs";

await work("pg-boss", async (connection, jobs, calls) => {
  const boss = new PgBoss({ ...connection, supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue("noop");
  for (let first = 0; first < jobs; first += 1000) {
    const count = Math.min(1000, jobs - first);
    await boss.insert("noop", Array.from({ length: count }, (_, n) => ({ data: { number: first + n } })));
  }
  const started = performance.now();
  const options = { batchSize: 500, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work("noop", options, async (batch) => batch.forEach((job) => calls.add(job.data.number)));
  await calls.allThere;
  await boss.stop({ graceful: true, timeout: 10000 });
  return started;
});
