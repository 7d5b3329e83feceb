package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
)

const (
	// Critical is a state in which messages are lost, or do not come.
	Critical Severity = "critical"
	// Notice is a state that is worth knowing, and may be as it should be.
	Notice Severity = "notice"
)

// severities are the severities of problems, the worst first.
var severities = []Severity{Critical, Violation, Warning, Notice}

// ProblemKind is the kind of a problem. Those of Check's findings have the Kind of the Finding.
type ProblemKind string

// The kinds of problems of one severity, the worst first.
const (
	Unscheduled    ProblemKind = "unscheduled"     // nobody does a topic's due-time work
	SchedulerFault ProblemKind = "scheduler fault" // a scheduler fails
	Behind         ProblemKind = "behind"          // a scheduler works, and is late
	PausedNow      ProblemKind = "paused"          // a topic or group is paused
	UnreadGroup    ProblemKind = "unread group"    // messages are ready, and nobody subscribes
	Hung           ProblemKind = "hung"            // messages are in hand, and none is settled
	Late           ProblemKind = "late"            // consumers do not keep up
	LimitedNow     ProblemKind = "limited"         // messages wait because of their group's limit
	DeadLetters    ProblemKind = "dead letters"    // dead letters grow
	LostHistory    ProblemKind = "lost history"    // a history has gaps, of the last day
	Suspect        ProblemKind = "suspect"         // a message may end its processes

	StoppedSchedule   ProblemKind = "stopped schedule"   // no program publishes a recurring schedule
	PausedSchedule    ProblemKind = "paused schedule"    // a recurring schedule is paused
	MissedOccurrences ProblemKind = "missed occurrences" // of recurring schedules, in the last day

	Replica      ProblemKind = "replica"       // the server is a replica, and takes no writes
	Memory       ProblemKind = "memory"        // Redis is almost full
	Eviction     ProblemKind = "eviction"      // Redis may evict keys
	Persistence  ProblemKind = "persistence"   // Redis may lose writes
	WriteFailed  ProblemKind = "failed write"  // Redis failed to write to its disk
	Clock        ProblemKind = "clock"         // the clocks differ
	Forbidden    ProblemKind = "forbidden"     // the user may not look
	OtherLayout  ProblemKind = "layout"        // another version wrote the topic
	Unreadable   ProblemKind = "unreadable"    // a topic cannot be read for another reason
	MissingTopic ProblemKind = "missing topic" // a topic does not exist: the registry lists it, or Topics
)

var problemKinds = []ProblemKind{
	Replica, Unscheduled, SchedulerFault, Behind, StoppedSchedule, PausedNow, PausedSchedule, UnreadGroup, Hung, Late, LimitedNow, DeadLetters, Suspect,
	MissedOccurrences, LostHistory, WriteFailed, Memory, Eviction, Persistence, Clock, Forbidden, OtherLayout, Unreadable, MissingTopic,
}

// ProblemKinds returns all kinds of problems, also those that only Deep finds.
func ProblemKinds() []ProblemKind {
	all := slices.Clone(problemKinds)
	for _, fault := range operate.Faults() {
		all = append(all, ProblemKind(fault))
	}
	return all
}

// Problem is something that is wrong, and what to do.
type Problem struct {
	Severity Severity    `json:"severity"`
	Kind     ProblemKind `json:"kind"`
	Harm     Harm        `json:"harm"` // what it does to messages now

	// Topic, Group and MessageID are what it is about; "" if it is not about a single one.
	Topic     string `json:"topic,omitempty"`
	Group     string `json:"group,omitempty"`
	MessageID string `json:"message_id,omitempty"`

	// Text says in one sentence what is wrong, and what to do first. It never tells to delete.
	Text string `json:"text"`

	// Mend are the arguments with which the program redisdelay mends it, or shows what to decide.
	// They delete nothing.
	Mend []string `json:"mend,omitempty"`

	// Delete are the arguments that remove what the problem is about, for when nobody needs it.
	// Deletes says what that would delete. Both are empty if nothing is to be removed.
	Delete  []string `json:"delete,omitempty"`
	Deletes string   `json:"deletes,omitempty"`

	// Ignored says who accepts the problem, and why; nil if nobody does.
	Ignored *Ignored `json:"ignored,omitempty"`

	weight int // more is worse, of problems of one kind
}

// Diagnosis is the result of Diagnose.
type Diagnosis struct {
	Now      time.Time `json:"now"`      // by the server's clock
	Topics   int       `json:"topics"`   // how many were looked at
	Problems []Problem `json:"problems"` // those that are ignored come last
}

// DiagnoseOptions says what Diagnose looks at.
type DiagnoseOptions struct {
	// Topics are the topics. None means all. Each partition of a partitioned topic is a topic of
	// its own in the problems.
	Topics []string

	// Deep adds what Check finds, which takes seconds for each 100,000 messages.
	Deep bool

	// Late is from when on a ready message counts as late, a group as unread, or a recurring
	// schedule as stopped. Default 1 minute.
	Late time.Duration

	// Progress, if not nil, is told after some topics, and with Deep before each topic.
	Progress func(DiagnoseProgress)
}

// DiagnoseProgress is how far Diagnose is.
type DiagnoseProgress struct {
	Topics  int    // topics that were looked at
	Checked int    // topics that Check has read, with Deep
	Topic   string // the topic that Check reads now
}

// growing is the time in which new dead letters count.
const growing = time.Hour

// Diagnose looks for everything that keeps messages from being delivered, or may lose them. The
// problems come by what they do to messages now: dead and lost ones, then late ones, then none.
// Notices come after that, and problems that are ignored come last. It only reads, and takes about
// a second for 10,000 topics, without Deep. What the Redis user may not look at is a problem of its
// own.
//
// Errors wrap ErrInvalidArgument or ErrInvalidTopic, or come from ctx, or from Redis if it does not
// answer.
func (a *Admin) Diagnose(ctx context.Context, o DiagnoseOptions) (Diagnosis, error) {
	if o.Late < 0 {
		return Diagnosis{}, fmt.Errorf("diagnose: %w: Late is %v, want 0 or more", ErrInvalidArgument, o.Late)
	}
	o.Late = cmp.Or(o.Late, time.Minute)
	d := &doctor{admin: a, options: o, refused: map[string]int{}, replica: map[string]bool{}}
	if err := d.look(ctx); err != nil {
		return Diagnosis{}, fmt.Errorf("diagnose: %w", err)
	}
	SortProblems(d.Problems)
	return d.Diagnosis, nil
}

// rank is the place in a list; what is not there comes last.
func rank[T comparable](list []T, of T) int {
	if at := slices.Index(list, of); at >= 0 {
		return at
	}
	return len(list)
}
