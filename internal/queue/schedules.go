package queue

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Recurring is the record of a recurring schedule.
type Recurring struct {
	Name    string
	Version int64 // goes up with each change of the definition; 0: there never was a schedule
	Removed bool  // only the version is left
	Damaged bool  // only the version could be read, as scripts read it

	Cursor  time.Time     // the last instant that was published or passed over
	Paused  time.Time     // since when; zero: it runs
	Run     time.Time     // the occurrence that somebody asked for; zero: none
	Asked   time.Time     // since when the programs of this version are asked to answer; zero: they are not
	Jitter  time.Duration // each occurrence is due so long after its instant
	Missed  int64         // instants that passed before their occurrence was in Redis
	Counted time.Time     // when the last of these were counted; zero: there are none
	Last    time.Time     // instant of the last occurrence that was due by the last write; zero: none was
	Waiting []time.Time   // instants of occurrences in Redis; of some the due time may have passed

	Definition string    // what the instants follow from
	Next       time.Time // when the first of those that wait is due; zero: none waits, or it was not asked for
}

// Alive tells whether there is a schedule.
func (r Recurring) Alive() bool { return r.Version > 0 && !r.Removed && !r.Damaged }

var (
	recurringRecord = regexp.MustCompile(`^(\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\S+) (.*)$`)
	leadingDigits   = regexp.MustCompile(`^\d*`)
)

// readRecurring reads a record; "" is none.
func readRecurring(name, text string) Recurring {
	r := Recurring{Name: DecodeName(name)}
	version := leadingDigits.FindString(text)
	r.Version, _ = strconv.ParseInt(version, 10, 64)
	parts := recurringRecord.FindStringSubmatch(text)
	if parts == nil {
		r.Removed = text == version
		r.Damaged = !r.Removed
		return r
	}
	var n [10]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(parts[i], 10, 64)
	}
	r.Cursor, r.Paused, r.Run, r.Asked = time.UnixMilli(n[2]), instantOrZero(n[3]), instantOrZero(n[4]), instantOrZero(n[5])
	r.Jitter, r.Missed = time.Duration(n[6])*time.Millisecond, n[7]
	r.Counted, r.Last = instantOrZero(n[8]), instantOrZero(n[9])
	for at := range strings.SplitSeq(parts[10], ",") {
		if ms, err := strconv.ParseInt(at, 10, 64); err == nil {
			r.Waiting = append(r.Waiting, time.UnixMilli(ms))
		}
	}
	r.Definition = parts[11]
	return r
}

func instantOrZero(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Guard says under which conditions publish takes an occurrence of a recurring schedule. Its delay
// ID is that of OccurrenceID. A guard is for one call of publish, which notes its verdict.
type Guard struct {
	text    string
	Verdict Verdict // written by publish, and read after it
}

// Verdict is what publish decided about an occurrence.
type Verdict string

// The verdicts. In their order a guard checks its conditions, but for Cancelled, which is about an
// occurrence that passed.
const (
	Undecided Verdict = ""          // publish has not succeeded yet, or not seen the guard
	Passed    Verdict = "passed"    // the occurrence is in Redis
	Repeated  Verdict = "repeated"  // an earlier run of the call, whose answer was lost, has decided
	Changed   Verdict = "changed"   // the schedule has another version, or is gone
	Faster    Verdict = "faster"    // another program has published the occurrence, or a later one
	IsPaused  Verdict = "paused"    // the schedule is paused
	Apart     Verdict = "apart"     // the occurrence before is missing, because its guard left it out
	Early     Verdict = "early"     // the server's clock has gone back since it was planned
	Late      Verdict = "late"      // it came too late
	Cancelled Verdict = "cancelled" // somebody had cancelled it
)

// Follows returns the guard of the occurrence that comes next after an instant, to be taken until
// latest. planned is what the server's clock showed when the occurrence was planned. If that clock
// has gone back by more than MostAhead since, the guard leaves the occurrence out. missed is how
// many instants were missed before it, or with it.
func Follows(version int64, planned, after, latest time.Time, missed int64) *Guard {
	earliest := max(planned.Add(-MostAhead).UnixMilli(), 0)
	return &Guard{text: fmt.Sprintf("%d:%d:%d:%d:%d", version, after.UnixMilli(), earliest, latest.UnixMilli(), missed)}
}

// AskedFor returns the guard of an occurrence that somebody asked for.
func AskedFor(version int64) *Guard { return &Guard{text: fmt.Sprintf("%d:run", version)} }

// judge notes what the script's reply, after "ok", says of the guards of a call's messages.
func judge(messages []Message, reply string, otherwise Verdict) {
	parts := strings.Fields(reply)
	for i := range messages {
		g := messages[i].Options.Guard
		if g == nil {
			continue
		}
		g.Verdict = otherwise
		if len(parts) > 1 && parts[0] == messages[i].ID { // the ids are in the order of the messages
			g.Verdict, parts = Verdict(parts[1]), parts[2:]
		}
	}
}

// OccurrenceID returns the delay ID of an occurrence.
func OccurrenceID(schedule string, at time.Time) string {
	return schedule + "@" + strconv.FormatInt(at.UnixMilli(), 10)
}

var occurrenceID = regexp.MustCompile(`@[0-9]+$`)

// mayBeOccurrence tells whether a delay ID has the form of OccurrenceID.
func mayBeOccurrence(delayID string) bool { return delayID != "" && occurrenceID.MatchString(delayID) }

// ProgramsFor is for how long the address of a program is valid that looks at schedules.
const ProgramsFor = time.Minute

// Schedules returns the records of recurring schedules, a thousand at most. amended differs from
// that of another call if any schedule of the topic was amended in between. ResumeSchedule and
// RunSchedule wake the address for ProgramsFor; "" changes nothing.
func (t *Topic) Schedules(ctx context.Context, address string, names []string) (now time.Time, amended string, records []Recurring, err error) {
	args := []any{address, ProgramsFor, ":"}
	for _, name := range names {
		args = append(args, EncodeName(name))
	}
	call := NewCall(&schedulesScript, []string{t.keys.Schedules(), t.keys.Programs()}, args...)
	if err := Do(ctx, t.client, call); err != nil {
		return now, "", nil, err
	}
	reply, err := call.cmd.StringSlice()
	if err == nil && len(reply) != 2*(len(names)+1) {
		err = fmt.Errorf("unexpected reply of %d parts", len(reply))
	}
	if err != nil {
		return now, "", nil, fmt.Errorf("schedules: %w", err)
	}
	for i, name := range names {
		r := readRecurring(EncodeName(name), reply[3+2*i])
		records = append(records, r)
	}
	return Instant(reply[0]), reply[1], records, nil
}

// SchedulesCall returns a call that reads some records of recurring schedules, from a cursor on.
// "0" begins. ReadSchedules reads its reply.
func (t *Topic) SchedulesCall(cursor string) *Call {
	return NewCall(&reviewScript, []string{t.keys.Schedules(), t.keys.Taken()}, cursor)
}

// ReadSchedules returns the records that SchedulesCall has read, the server's time, and the cursor
// of the next call. "0" ends. A schedule may come twice.
func ReadSchedules(call *Call) (records []Recurring, now time.Time, next string, err error) {
	reply, err := call.cmd.StringSlice()
	if err == nil && (len(reply) < 2 || len(reply)%4 != 2) {
		err = fmt.Errorf("unexpected reply of %d parts", len(reply))
	}
	if err != nil {
		return nil, now, "", fmt.Errorf("schedules: %w", err)
	}
	for part := reply[2:]; len(part) > 0; part = part[4:] {
		r := readRecurring(part[0], part[1])
		r.Next, r.Last = Instant(part[2]), Instant(part[3])
		records = append(records, r)
	}
	return records, Instant(reply[1]), reply[0], nil
}

// Amendment is a change of a recurring schedule. The fields after Name are for some kinds only.
type Amendment struct {
	What Amend
	Name string

	Seen       int64         // the version that the caller has seen; for Put, Ask, Answer and Return
	Definition string        // for Put
	Jitter     time.Duration // for Put
	First      time.Time     // no occurrence is earlier; for Put
	Known      time.Time     // an instant whose occurrence was due when the caller looked; for Return
}

// Amend is a kind of Amendment.
type Amend string

const (
	Put              Amend = "put"    // gives the schedule a definition, and takes back what waits by another one
	PauseSchedule    Amend = "pause"  // takes back what waits
	ResumeSchedule   Amend = "resume" // goes on with the instants after now
	RunSchedule      Amend = "run"    // asks for one occurrence now
	RemoveSchedule   Amend = "remove" // takes back what waits
	AskSchedule      Amend = "ask"    // asks whether programs with this version live
	AnswerAsSchedule Amend = "answer" // answers that one does
	ReturnSchedule   Amend = "return" // counts from now on, if the last occurrence was due more than MostAhead after now
)

// MostAhead is by how much the last occurrence of a schedule may be after the server's clock. More
// means that the clock was ahead. Less is waited out, because the clocks of two servers differ.
const MostAhead = time.Minute

// Amended is what an Amendment came to.
type Amended struct {
	Record    Recurring // as it is now
	Changed   bool      // the version was not the one that was seen, so nothing was done
	Missing   bool      // there is no such schedule
	TakenBack int       // occurrences that waited
}

// Amend changes recurring schedules, in one round trip. It returns ErrNotFound if there is no such
// topic.
func (t *Topic) Amend(ctx context.Context, amendments ...Amendment) (done []Amended, err error) {
	return t.amend(ctx, t.Existing, amendments)
}

// AmendNew is Amend, but makes the topic if there is none.
func (t *Topic) AmendNew(ctx context.Context, amendments ...Amendment) (done []Amended, err error) {
	return t.amend(ctx, t.Groups, amendments)
}

func (t *Topic) amend(ctx context.Context, read func(context.Context) (*Groups, error), amendments []Amendment) (done []Amended, err error) {
	ctx, end := WhileRemembered(ctx)
	defer end()
	k, operation := t.keys, t.keys.Operation(Token())
	err = t.with(ctx, read, func(groups *Groups) error {
		calls := make([]*Call, len(amendments))
		for i, a := range amendments {
			calls[i] = NewCall(&amendScript,
				[]string{k.Meta(), k.Schedules(), k.Messages(), k.Options(), k.Pending(), k.Names(), k.Taken(), operation,
					k.Programs(), k.Counters()},
				groups.Version, string(a.What), EncodeName(a.Name), OperationMemory, a.Seen, a.Definition, a.Jitter,
				max(a.First.UnixMilli(), 0), max(a.Known.UnixMilli(), 0))
		}
		if err := Do(ctx, t.client, calls...); err != nil {
			return err
		}
		done = make([]Amended, len(calls))
		for i, call := range calls {
			if done[i], err = readAmended(amendments[i].Name, call); err != nil {
				return err
			}
		}
		return nil
	})
	return done, err
}

// readAmended reads the reply of the amend script.
func readAmended(name string, call *Call) (a Amended, err error) {
	reply, err := call.cmd.Slice()
	if err == nil && len(reply) != 4 {
		err = fmt.Errorf("unexpected reply of %d parts", len(reply))
	}
	if err != nil {
		return a, fmt.Errorf("amend: %w", err)
	}
	if reply[0] == "stale" {
		return a, ErrStale
	}
	n, _ := reply[3].(int64)
	a.Changed, a.Missing, a.TakenBack = reply[0] == "changed", reply[0] == "missing", int(n)
	a.Record = readRecurring(EncodeName(name), Text(reply[2]))
	return a, nil
}

// Handling is one handling of an occurrence, in one group.
type Handling struct {
	topic      *Topic
	keys       []string
	occurrence string
	token      string
	lease      time.Duration
}

// Handle returns a handling of an occurrence, which Begin starts. It is valid for a lease, and for
// another one after each Extend.
func (t *Topic) Handle(schedule, group string, at time.Time, lease time.Duration) *Handling {
	keys := []string{t.keys.Handling(schedule, group), t.keys.Stats(group)}
	return &Handling{t, keys, strconv.FormatInt(at.UnixMilli(), 10), Token(), lease}
}

// Begin tells whether the group handles no other occurrence of the schedule, and no other one is
// next. again is for an occurrence that was delivered before: if it may not begin, it is the next
// one, for so long. Otherwise again is 0, and counts says to count it as skipped if it may not
// begin.
func (h *Handling) Begin(ctx context.Context, again time.Duration, counts bool) (bool, error) {
	return h.call(ctx, "begin", again, counts)
}

// Extend tells whether the handling is still valid.
func (h *Handling) Extend(ctx context.Context) (bool, error) { return h.call(ctx, "extend", 0, false) }

// End ends the handling.
func (h *Handling) End(ctx context.Context) error {
	_, err := h.call(ctx, "end", 0, false)
	return err
}

func (h *Handling) call(ctx context.Context, what string, again time.Duration, counts bool) (bool, error) {
	call := NewCall(&overlapScript, h.keys, what, h.occurrence, h.token, h.lease, again, counts)
	if err := Do(ctx, h.topic.client, call); err != nil {
		return false, err
	}
	return call.cmd.Bool()
}
