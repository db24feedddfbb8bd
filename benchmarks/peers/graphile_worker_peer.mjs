// graphile-worker with its local queue and batched completion.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { work } from "./program.mjs";

await work("graphile-worker", async (connection, jobs, calls) => {
  const pgPool = new pg.Pool({ ...connection, max: 10 });
  const utils = await makeWorkerUtils({ pgPool });
  await utils.migrate();
  await utils.withPgClient((client) =>
    client.query(
      `SELECT graphile_worker.add_jobs(array_agg(json_populate_record(
         NULL::graphile_worker.job_spec,
         json_build_object('identifier', 'noop', 'payload', json_build_object('number', n)))))
       FROM generate_series(0, $1::int - 1) AS n`,
      [jobs],
    ),
  );
  await utils.release();
  const started = performance.now();
  const runner = await run({
    pgPool,
    noHandleSignals: true,
    taskList: { noop: async ({ number }) => calls.add(number) },
    preset: {
      worker: {
        concurrentJobs: 24,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  await calls.allThere;
  await runner.stop();
  return started;
});
