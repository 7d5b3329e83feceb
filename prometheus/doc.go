// Package promredisdelay exports what admin knows about topics as Prometheus metrics.
//
//	collector, err := promredisdelay.New(promredisdelay.Config{Admin: a, Client: client})
//	prometheus.MustRegister(collector)
//
// All figures are in Redis. So one process exports those of all publishers, subscribers and
// schedulers, and no other process has to be scraped. If several export them, scrape one.
//
// Counters count since the topic or the group was created. One that is removed and created again
// begins anew, which Prometheus takes for a reset. A process that crashes loses what it had not
// told Redis yet.
//
// The groups of Broadcast subscriptions have random names. Those of a topic are one group,
// "broadcast": their counts are added, and of their times the worst one counts. Their counters
// begin at 0 when the Collector does.
package promredisdelay
