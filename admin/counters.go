package admin

import "time"

// Counters is what a topic has counted since it was created. The counters only grow.
type Counters struct {
	// Published counts messages that the topic took.
	Published int `json:"published"`

	// Replaced counts messages that later ones with their delay ID replaced.
	Replaced int `json:"replaced"`

	// LeftOut counts messages that were not published because their delay ID was taken:
	// redisdelay.DelayIDKeep.
	LeftOut int `json:"left_out"`

	// RefusedFull counts messages of calls that failed with redisdelay.ErrTopicFull. A call that
	// the client repeats after a lost reply may count twice.
	RefusedFull int `json:"refused_full"`

	// RefusedOccurrences counts occurrences of recurring schedules that a program made, and that
	// were not published. They came too late, or meanwhile the schedule was paused or changed, or
	// the server's clock went back. What another program had published already is not in it.
	RefusedOccurrences int `json:"refused_occurrences"`

	// Returned counts recurring schedules that came back, because the server's clock was ahead when
	// they last published. An occurrence since then may have come twice.
	Returned int `json:"returned"`

	// HistoryFailed counts lines of cancelled and replaced messages that a history lacks, or has
	// without the UUID or for too long. The Redis user lacked a command: see docs/operations.md.
	HistoryFailed int `json:"history_failed"`
}

// GroupCounters is what a consumer group has counted since it was created. The counters only grow.
// Delivered, Acked, LeaseLost and GivenUp are approximate: see GroupStats.Lateness. The others are
// exact.
type GroupCounters struct {
	// Delivered counts deliveries: messages that were handed to a consumer, each time anew.
	Delivered int `json:"delivered"`

	// Acked and Nacked count deliveries by how they ended. A handler that ran for too long is in
	// Nacked, as is a postponed message. An ack or nack that came too late is in neither, nor is an
	// ack whose answer was lost.
	Acked  int `json:"acked"`
	Nacked int `json:"nacked"`

	// Retried counts nacked messages that waited for a retry. The others in Nacked were ready again
	// at once, or died.
	Retried int `json:"retried"`

	// Dropped counts messages that expired and were dropped: redisdelay.ExpiryDrop.
	Dropped int `json:"dropped"`

	// Skipped counts occurrences of recurring schedules that periodic.OverlapSkip acked without
	// handling them. They are in Acked, too.
	Skipped int `json:"skipped"`

	// Expired counts leases that ended, because a process crashed, stood still, or could not
	// reach Redis, or because a handler outlived CloseTimeout.
	Expired int `json:"expired"`

	// Disowned counts those of Expired that were ended sooner, because their processes were gone:
	// see redisdelay.SubscriberConfig.WholeLeases.
	Disowned int `json:"disowned"`

	// Suspects counts messages that became suspects. GroupStats.Suspects has how many are now.
	Suspects int `json:"suspects"`

	// LeaseLost counts messages whose lease was lost while a handler had them: their contexts ended
	// with redisdelay.ErrLeaseLost.
	LeaseLost int `json:"lease_lost"`

	// GivenUp counts messages that handlers, or the Unmarshaler, had not settled within
	// redisdelay.SubscriberConfig.CloseTimeout when it closed. They are delivered again when their
	// leases run out, which Expired counts.
	GivenUp int `json:"given_up"`

	// Limited counts claims that the group's limit left with less than they asked for, while
	// messages were ready. LimitedFor is for how long messages have waited because of the limit.
	Limited    int           `json:"limited"`
	LimitedFor time.Duration `json:"limited_for"`

	// HistoryFailed counts lines that the history of the group lacks, or has without the UUID or
	// for too long, as Counters.HistoryFailed does.
	HistoryFailed int `json:"history_failed"`

	// Dead counts the messages that became dead letters.
	Dead DeadCounters `json:"dead"`

	// DeadPurged counts the dead letters that were deleted because the group had more than MaxDead.
	// Those past DeadRetention, and those that PurgeDead or DeleteDead deleted, are not in it.
	DeadPurged int `json:"dead_purged"`
}

// DeadCounters counts dead letters by the cause of their death.
type DeadCounters struct {
	Deliveries int `json:"deliveries"` // nacked on the last delivery
	Lease      int `json:"lease"`      // the lease expired on the last delivery
	Asked      int `json:"asked"`      // the handler asked for it: redisdelay.DeadOnNack
	Late       int `json:"late"`       // not delivered in time: redisdelay.ExpiryDead
	Unmarshal  int `json:"unmarshal"`  // the Unmarshaler refused the message
	Killed     int `json:"killed"`     // an operator killed it: Admin.Kill
}

// Total returns the number of deaths by all causes.
func (d DeadCounters) Total() int {
	return d.Deliveries + d.Lease + d.Asked + d.Late + d.Unmarshal + d.Killed
}
