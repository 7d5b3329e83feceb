// Package periodic publishes messages again and again, by cron specs, intervals and time zones.
//
// A Schedule says when, and makes the messages. Any number of programs run the same schedules, with
// no leader. Each occurrence is published once: a guard in Redis checks, in the step that publishes
// it, that it follows the last one. Occurrences are in Redis before they are due. So they are
// delivered on time while no program of this package lives.
//
// docs/periodic.md says what happens when clocks change, after an outage, when a spec is edited,
// and in a deploy.
//
// periodic.go has the API, config.go its settings, and definition.go what Redis has of them.
// Package internal/calendar finds the instants of a spec, and plan.go decides which occurrences are
// to be published next; both are pure. topic.go has the loop of a topic, and schedule.go carries
// out the plans. overlap.go is a middleware for handlers.
package periodic
