package main

// peer is a system that is compared.
type peer struct {
	name    string
	program string // its directory, and the binary built from it
	url     string
	library func() (string, error) // its name and version
	server  serverKind
	delays  bool
	bulk    bool   // it has a call for several messages
	how     string // how it is set up, for the report
}

// peers are all systems, in the order in which they run and are reported.
var peers = []peer{
	{
		name: "watermill-redisdelay", program: "redisdelay",
		url:     "https://github.com/redisdelay/watermill-redisdelay",
		library: func() (string, error) { return "this commit", nil },
		server:  redisServer, delays: true, bulk: true,
		how: "Defaults, but `MaxInFlight` 256 and `LeaseDuration` 30 s.",
	}, {
		name: "watermill-redisstream", program: "redisstream",
		url:     "https://github.com/ThreeDotsLabs/watermill-redisstream",
		library: module("github.com/ThreeDotsLabs/watermill-redisstream"),
		server:  redisServer, bulk: true,
		how: "The baseline: no delays, so lateness counts from before the call of Publish. 32 consumers of one group, because each " +
			"reads one message at a time. `MaxIdleTime` 30 s. Messages stay in the stream, as by default.",
	}, {
		name: "asynq", program: "asynq",
		url:     "https://github.com/hibiken/asynq",
		library: module("github.com/hibiken/asynq"),
		server:  redisServer, delays: true,
		how: "One queue, `Concurrency` 32, `DelayedTaskCheckInterval` 1 s instead of 5 s. Its due times are whole seconds, cut. Its lease " +
			"of 30 s, and the minute between two looks for expired ones, are fixed. A retry comes after 1 s instead of by its formula.",
	}, {
		name: "BullMQ", program: "bullmq",
		url:     "https://github.com/taskforcesh/bullmq",
		library: npmPackage("bullmq"),
		server:  redisServer, delays: true, bulk: true,
		how: "Node.js, so producers share one thread. `concurrency` 300, the most that its documentation calls typical; completed jobs are " +
			"removed; `lockDuration` and `stalledInterval` 30 s, the defaults. Several jobs: `addBulk`.",
	}, {
		name: "NATS JetStream", program: "nats",
		url:     "https://github.com/nats-io/nats-server",
		library: module("github.com/nats-io/nats.go"),
		server:  natsServer, delays: true, bulk: true,
		how: "Scheduled messages in a work-queue stream on disk. The header `Nats-Schedule: @at` is set by hand, because `WithScheduleAt` " +
			"cuts due times to whole seconds. The server looks for due messages every 250 ms at most, which is fixed. One `Consume`, `MaxAckPending` 10,000, `AckWait` 30 s. Several messages: `PublishMsgAsync`.",
	}, {
		name: "RabbitMQ", program: "rabbitmq",
		url:     "https://github.com/rabbitmq/rabbitmq-server",
		library: module("github.com/rabbitmq/amqp091-go"),
		server:  rabbitServer, delays: true, bulk: true,
		how: "Queues with a time to live that dead-letter into the worker's queue: one for each 10 ms of delay, 1,000 in all, and delays are " +
			"rounded up. Classic durable queues, persistent messages, publisher confirms, a channel for each producer, prefetch 300. Several " +
			"messages: published in a row, then their confirms awaited.",
	}, {
		name: "River", program: "river",
		url:     "https://github.com/riverqueue/river",
		library: module("github.com/riverqueue/river"),
		server:  postgresServer, delays: true, bulk: true,
		how: "The settings of its own benchmark: `FetchCooldown` 2 ms, `FetchPollInterval` 20 ms, 1,000 workers. Its scheduler " +
			"prepares every 5 s the jobs that become due in the next 5 s, which is fixed. `RescueStuckJobsAfter` 30 s instead of an hour, retries at once. Several jobs: `InsertManyFast`.",
	}, {
		name: "watermill-sql, delayed", program: "watermillsql",
		url:     "https://github.com/ThreeDotsLabs/watermill-sql",
		library: module("github.com/ThreeDotsLabs/watermill-sql/v4"),
		server:  postgresServer, delays: true, bulk: true,
		how: "`DeleteOnAck`, `PollInterval` 100 ms instead of 1 s. One subscriber, because each locks the rows that others would read. " +
			"The due time in the metadata is set by hand, because `delay.Message` cuts it to whole seconds, so that messages would come early.",
	},
}

// leftOut are those that cannot be had where this program was written, and why.
var leftOut = map[string]string{
	"RabbitMQ's delayed message exchange": "a plugin that no package registry offers here",
}
