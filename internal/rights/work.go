package rights

import (
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Work is a kind of use of a topic: the scripts and commands that it sends.
type Work struct {
	Name    string
	scripts []string
	besides []string // commands that are sent without a script
	opens   bool     // the work makes the topic if there is none
}

// enrolling has the commands that enter a topic in the registry.
var enrolling = []string{"SISMEMBER", "SADD", "PUBLISH"}

// The work of publishers, subscribers and schedulers. A subscriber runs a scheduler, too.
var (
	Publishing        = Work{Name: "publish", scripts: []string{"open", "look", "publish"}, besides: enrolling, opens: true}
	PublishingStreams = Work{Name: "publish to streams", scripts: []string{"open_stream", "look", "publish"}, besides: enrolling, opens: true}
	Scheduling        = Work{Name: "schedule", scripts: []string{"open", "look", "promote", "watch", "disown", "expire", "purge", "resume", "succeed", "remove", "fault", "resign"}}
	SchedulingStreams = Work{Name: "schedule streams", scripts: []string{"open", "look", "promote_stream", "purge", "resume", "fault", "resign"}}
	Recurrence        = Work{Name: "recur", scripts: []string{"open", "look", "publish", "schedules", "amend"}, besides: enrolling, opens: true}
	RecurrenceStreams = Work{Name: "recur in streams", scripts: []string{"open_stream", "look", "publish", "schedules", "amend"}, besides: enrolling, opens: true}
	Overlapping       = Work{Name: "overlap", scripts: []string{"overlap"}}
	Consuming         = Work{
		Name: "consume", besides: enrolling, opens: true,
		scripts: append([]string{"register", "claim", "ack", "nack", "release", "extend", "sign", "stand_down"}, Scheduling.scripts...),
	}
)

// Spreading is the work of a subscriber that spreads active partitions over processes.
var Spreading = Work{Name: "spread partitions", scripts: Consuming.scripts, besides: append([]string{"TIME", "HGET", "ZRANGE", "HGETALL"}, enrolling...), opens: true}

// The work of operators.
var (
	Counting       = Work{Name: "stats", scripts: []string{"look", "stats"}}
	Listing        = Work{Name: "list", scripts: []string{"look", "page"}, besides: []string{"HMGET"}}
	Finding        = Work{Name: "get", scripts: []string{"look", "inspect", "seek"}, besides: []string{"TIME", "HGET", "HMGET", "ZSCORE", "ZRANGEBYSCORE"}}
	Searching      = Work{Name: "find", scripts: []string{"look", "stats", "page", "inspect", "seek"}, besides: Finding.besides}
	Surveying      = Work{Name: "survey", scripts: []string{"look", "stats", "page"}, besides: []string{"HMGET"}}
	Measuring      = Work{Name: "memory", scripts: []string{"look", "stats"}, besides: []string{"HSTRLEN", "LRANGE", "ZRANGE"}}
	Watching       = Work{Name: "workers", scripts: []string{"look"}, besides: []string{"TIME", "HSCAN"}}
	Foreseeing     = Work{Name: "upcoming", scripts: []string{"look", "upcoming"}}
	Tailing        = Work{Name: "tail", scripts: []string{"look", "passing"}}
	Cancelling     = Work{Name: "cancel", scripts: []string{"look", "cancel", "seek", "recall", "inspect"}, besides: Finding.besides}
	Rescheduling   = Work{Name: "reschedule", scripts: []string{"look", "reschedule", "seek", "recall", "inspect"}, besides: Finding.besides}
	CancellingMany = Work{Name: "cancel many", scripts: []string{"look", "stats", "page", "cancel"}}
	MovingDueTimes = Work{Name: "reschedule many", scripts: []string{"look", "stats", "page", "reschedule"}}
	Restoring      = Work{Name: "restore", scripts: []string{"look", "restore"}, besides: []string{"HGET", "SISMEMBER", "TIME", "ZSCORE"}}
	Requeueing     = Work{Name: "requeue", scripts: []string{"requeue"}}
	Discarding     = Work{Name: "discard", scripts: []string{"discard"}}
	RequeueingMany = Work{Name: "requeue many", scripts: []string{"look", "stats", "page", "requeue"}}
	DiscardingMany = Work{Name: "discard many", scripts: []string{"look", "stats", "page", "discard"}}
	Arriving       = Work{Name: "move to", scripts: []string{"open", "look", "publish", "cancel", "reschedule"}, besides: enrolling, opens: true}
	Leaving        = Work{Name: "move from", scripts: []string{"look", "stats", "page", "gather", "depart"}, besides: []string{"HMGET", "HGET"}}
	Adopting       = Work{Name: "move messages to", scripts: []string{"look", "adopt", "depart", "arrive"}}
	Killing        = Work{Name: "kill", scripts: []string{"look", "kill"}}
	Releasing      = Work{Name: "release a worker", scripts: []string{"look", "expire", "nudge"}, besides: []string{"HSCAN"}}
	Pausing        = Work{Name: "pause", scripts: []string{"look", "pause"}}
	Resuming       = Work{Name: "resume", scripts: []string{"look", "resume"}}
	Assigning      = Work{Name: "assign", scripts: []string{"look", "assign"}}
	Recalling      = Work{Name: "history", scripts: []string{"look"}, besides: []string{"HGETALL"}}
	Reviewing      = Work{Name: "schedules", scripts: []string{"look", "review"}}
	Amending       = Work{Name: "amend a schedule", scripts: []string{"look", "amend"}}
	Removing       = Work{Name: "remove", scripts: []string{"look", "stats", "remove"}, besides: []string{"ZRANGEBYSCORE"}}
	Adding         = Work{
		Name: "add a group", scripts: []string{"look", "register", "remove"}, besides: enrolling, opens: true,
	}
	Erasing = Work{
		Name: "erase", scripts: []string{"look", "stats", "erase"},
		besides: append([]string{"ZRANGEBYSCORE", "SREM"}, enrolling...),
	}
	Checking = Work{
		Name: "check", scripts: []string{"look", "inspect", "scan", "halves", "ranges", "stats"},
		besides: []string{"ZRANGEBYSCORE", "SISMEMBER", "TYPE", "PTTL", "LRANGE", "HGET", "ZSCORE", "TIME"},
	}
	Repairing = Work{
		Name:    "repair",
		scripts: append([]string{"mend", "single", "nudge"}, Checking.scripts...),
		besides: slices.Concat([]string{"PERSIST"}, enrolling, Checking.besides),
	}
)

// AndWaits returns the work of a publisher that also waits for replicas.
func (w Work) AndWaits() Work {
	w.Name, w.besides = w.Name+" and wait", append(slices.Clone(w.besides), "GET", "PEXPIRE", "WAIT")
	return w
}

// AndRecords returns the work of a subscriber whose group keeps a history.
func (w Work) AndRecords() Work {
	w.Name, w.besides = w.Name+" and record", append(slices.Clone(w.besides), queue.Recording...)
	return w
}

// notForScripts has the tries, which change nothing, of commands that no script may call.
var notForScripts = map[string][]any{"WAIT": {"wait", 0, 1}}

// commands returns the commands of the work, each once.
func (w Work) commands() []string {
	all := append(queue.Commands(w.scripts...), w.besides...)
	slices.Sort(all)
	return slices.Compact(all)
}
