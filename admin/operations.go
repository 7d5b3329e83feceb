package admin

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// Subject is what an Operation is about: a group, a topic or a schedule.
type Subject string

const (
	OfGroup    = Subject("group")    // Bulk.Group of the topic
	OfTopic    = Subject("topic")    // the topic
	OfSchedule = Subject("schedule") // Bulk.Schedule of the topic
)

// Operation is an operation on many messages, and what a program has to know to offer it.
// Operations returns all of them.
type Operation struct {
	// Name is its name in the audit log, in the tool's JSON, and on the page, such as "requeue".
	Name string

	// Verb and Unit say what is done, as in "requeue 5 dead letters". Unit is in the singular.
	// Effect is the same in one sentence.
	Verb, Unit, Effect string

	// Of is what the messages belong to. State is their state, and then Bulk.Filter and Bulk.Limit
	// choose among them. With State "", the operation is about all that the subject has.
	Of    Subject
	State State

	// Waits is for messages that wait for their due time or for a retry. Such an operation heeds
	// Bulk.States, Listed, and Group for retries. Times heeds Bulk.When, By and Back.
	Waits, Times bool

	Spreads    bool // heeds Bulk.Spread
	Moves      bool // moves to the topic Bulk.To
	Deletes    bool // the messages are gone from the topic, and nothing brings them back
	Partitions bool // takes a partitioned topic, and runs on one partition after the other
	Single     bool // has RunOne

	run func(a *Admin, ctx context.Context, topic string, bulk Bulk) (int, error)
	one func(a *Admin, ctx context.Context, topic string, message GroupMessage) error
}

// Operations returns the operations on many messages, in the order in which a program offers them.
// The tool and the web page have no other list.
func Operations() []Operation {
	return []Operation{
		{Name: "requeue", Verb: "requeue", Unit: "dead letter", Of: OfGroup, State: Dead, Spreads: true, Partitions: true,
			Effect: "Make dead letters ready again, and count their deliveries from zero.",
			run:    (*Admin).RequeueAll, Single: true, one: (*Admin).Requeue},
		{Name: "move", Verb: "move", Unit: "dead letter", Of: OfGroup, State: Dead, Spreads: true, Moves: true, Deletes: true, Partitions: true,
			Effect: "Publish dead letters as new messages in another topic, and delete them here.",
			run:    (*Admin).MoveDead},
		{Name: "purge", Verb: "purge", Unit: "dead letter", Of: OfGroup, State: Dead, Deletes: true, Partitions: true,
			Effect: "Delete dead letters.",
			run:    (*Admin).PurgeDead, Single: true, one: (*Admin).DeleteDead},
		{Name: "reschedule", Verb: "reschedule", Unit: "message", Of: OfTopic, State: Waiting, Waits: true, Times: true, Spreads: true, Partitions: true,
			Effect: "Give messages that wait another due time.",
			run:    (*Admin).RescheduleAll},
		{Name: "deliver-now", Verb: "deliver", Unit: "message", Of: OfTopic, State: Waiting, Waits: true, Spreads: true, Partitions: true,
			Effect: "Deliver messages that wait at once.",
			run:    (*Admin).RescheduleAll},
		{Name: "cancel", Verb: "cancel", Unit: "message", Of: OfTopic, State: Waiting, Waits: true, Deletes: true, Partitions: true,
			Effect: "Take back messages that wait.",
			run:    (*Admin).CancelAll},
		{Name: "remove-group", Verb: "remove the group with", Unit: "message", Of: OfGroup, Deletes: true, Partitions: true,
			Effect: "Delete the group and its messages. Other groups lose nothing.",
			run: func(a *Admin, ctx context.Context, topic string, bulk Bulk) (int, error) {
				removal, err := a.DeleteGroup(ctx, topic, bulk.Group, DeleteOptions{DryRun: bulk.DryRun})
				return removal.Messages, err
			}},
		{Name: "remove-topic", Verb: "remove the topic with", Unit: "message", Of: OfTopic, Deletes: true, Partitions: true,
			Effect: "Delete the topic, its groups and all messages. Stop its publishers and subscribers first.",
			run: func(a *Admin, ctx context.Context, topic string, bulk Bulk) (int, error) {
				removal, err := a.DeleteTopic(ctx, topic, DeleteOptions{DryRun: bulk.DryRun})
				return removal.Messages, err
			}},
		{Name: "remove-schedule", Verb: "remove the schedule with", Unit: "waiting occurrence", Of: OfSchedule, Deletes: true,
			Effect: "Delete the schedule and its waiting occurrences. Programs that run it leave it. One that starts with it begins it anew, so take it out of the programs first.",
			run: func(a *Admin, ctx context.Context, topic string, bulk Bulk) (int, error) {
				return a.RemoveSchedule(ctx, topic, bulk.Schedule, DeleteOptions{DryRun: bulk.DryRun})
			}},
	}
}

// OperationNamed returns the operation of a name, and whether there is one.
func OperationNamed(name string) (Operation, bool) {
	for _, o := range Operations() {
		if o.Name == name {
			return o, true
		}
	}
	return Operation{}, false
}

// Run runs the operation, and returns how many messages it changed, or would change in a dry run.
// When ctx ends, it finishes the chunk of messages that it has begun. Errors wrap
// ErrInvalidArgument if bulk has a setting that the operation does not heed, or are those of the
// method that does the same, such as RequeueAll.
func (o Operation) Run(ctx context.Context, a *Admin, topic string, bulk Bulk) (int, error) {
	if o.run == nil {
		return 0, fmt.Errorf("%w: operation %q is not one of Operations", ErrInvalidArgument, o.Name)
	}
	if err := o.check(bulk); err != nil {
		return 0, err
	}
	return o.run(a, ctx, topic, bulk)
}

// RunOne runs the operation on one message. Errors wrap ErrInvalidArgument if it is not Single, or
// are those of the method that does the same, such as Requeue.
func (o Operation) RunOne(ctx context.Context, a *Admin, topic string, message GroupMessage) error {
	if o.one == nil {
		return fmt.Errorf("%w: operation %q is not for single messages", ErrInvalidArgument, o.Name)
	}
	return o.one(a, ctx, topic, message)
}

// check refuses settings that the operation does not heed.
func (o Operation) check(b Bulk) error {
	if err := b.check(); err != nil {
		return err
	}
	if o.Of == OfSchedule && b.Schedule == "" {
		return fmt.Errorf("%w: operation %q needs a Schedule", ErrInvalidArgument, o.Name)
	}
	for _, setting := range []struct {
		name        string
		given, used bool
	}{
		{"Group", b.Group != "", o.Of == OfGroup || o.Waits && slices.Contains(b.States, Retrying)},
		{"Schedule", b.Schedule != "", o.Of == OfSchedule},
		{"Filter", !reflect.ValueOf(b.Filter).IsZero(), o.State != ""},
		{"Limit", b.Limit != 0, o.State != ""},
		{"To", b.To != "", o.Moves},
		{"Spread", b.Spread != 0, o.Spreads},
		{"States", b.States != nil, o.Waits},
		{"Listed", b.Listed != nil, o.Waits},
		{"When", b.When != (When{}), o.Times},
		{"By", b.By != 0, o.Times},
		{"Back", b.Back, o.Times},
	} {
		if setting.given && !setting.used {
			return fmt.Errorf("%w: %s is set, and operation %q does not heed it", ErrInvalidArgument, setting.name, o.Name)
		}
	}
	return nil
}

// Bulk says what an operation on many messages is about, and reports its progress. Each operation
// refuses the settings that it does not heed: see Operation. One without a State never calls
// Progress.
type Bulk struct {
	Group    string // has the messages or retries; default redisdelay.DefaultConsumerGroup
	Schedule string // name of a recurring schedule
	Filter   Filter // chooses messages; the zero value chooses all

	// Limit is the maximum number of messages that are changed, the oldest first. 0 means all. Of a
	// partitioned topic they are changed partition by partition.
	Limit int

	// States are the states of the messages: Waiting, Retrying, or both. Default: Waiting. Only
	// retries belong to Group.
	States []State

	// Listed has the messages among which the others choose, as List returned them: their ID,
	// Topic, expiry and first Place. It may be ranged over twice. A message that waits for another
	// time by now stays as it is. So an operation that is run again changes no message twice. Nil
	// means that the messages are listed now.
	Listed iter.Seq2[Message, error]

	// When is the new due time of the messages. By moves each due time instead, and may be
	// negative. A due time in the past is now. Without either it is now.
	When When
	By   time.Duration

	// Back gives each message of Listed the due time that it has there, whatever it is now. A retry
	// that was delivered since stays as it is, if Listed has Message.Stored.
	Back bool

	To string // the topic to which messages move; only a dry run can do without

	// Spread is the time over which the messages become due, evenly one after the other, so that
	// consumers are not flooded. They are counted first. 0 means that all are due at once. The
	// maximum is redisdelay.MaxDelay.
	Spread time.Duration

	DryRun   bool           // count what would be changed, and change nothing
	Progress func(Progress) // if not nil, called after each chunk of at most 1,000 messages
}

// check refuses values that no operation takes.
func (b Bulk) check() error {
	switch {
	case b.Limit < 0:
		return fmt.Errorf("%w: Limit is %d, want 0 or more", ErrInvalidArgument, b.Limit)
	case b.When.err != nil:
		return b.When.err
	case b.By < -redisdelay.MaxDelay || b.By > redisdelay.MaxDelay:
		return fmt.Errorf("%w: By is %v, want from %v to %v", ErrInvalidArgument, b.By, -redisdelay.MaxDelay, redisdelay.MaxDelay)
	case b.By != 0 && (b.When != (When{}) || b.Spread != 0):
		return fmt.Errorf("%w: By is set, and When or Spread; want one of them", ErrInvalidArgument)
	case b.Back && (b.Listed == nil || b.When != (When{}) || b.By != 0 || b.Spread != 0):
		return fmt.Errorf("%w: Back is set; want Listed, and no When, By and Spread", ErrInvalidArgument)
	case slices.ContainsFunc(b.States, func(s State) bool { return s != Waiting && s != Retrying }):
		return fmt.Errorf("%w: States is %q, want %q, %q or both", ErrInvalidArgument, b.States, Waiting, Retrying)
	case b.Spread < 0 || b.Spread > redisdelay.MaxDelay:
		return fmt.Errorf("%w: Spread is %v, want from 0 to %v", ErrInvalidArgument, b.Spread, redisdelay.MaxDelay)
	}
	return nil
}

// Progress is the progress of an operation on many messages.
type Progress struct {
	Looked int `json:"looked"` // messages examined, or entries of keys
	Done   int `json:"done"`   // messages changed

	// Gone is how many messages did not wait any more when their turn came, or waited for another
	// time. Refused is how many could not be changed, as the error at the end says.
	Gone    int `json:"gone,omitempty"`
	Refused int `json:"refused,omitempty"`
}

// GroupMessage names a message in one group, by its ID. Group is by default
// redisdelay.DefaultConsumerGroup.
type GroupMessage struct{ Group, ID string }
