package queue

import (
	"cmp"
	"context"
	"errors"
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
	Until   time.Time     // when the pause ends by itself; zero: only a resume ends it
	By, Why string        // who paused it, and the reason
	Run     time.Time     // the occurrence that somebody asked for; zero: none
	Asked   time.Time     // since when the programs of this version are asked to answer; zero: they are not
	Jitter  time.Duration // each occurrence is due so long after its instant
	Missed  int64         // instants that passed before their occurrence was in Redis
	Counted time.Time     // when the last of these were counted; zero: there are none
	Last    time.Time     // instant of the last occurrence that was due by the last write; zero: none was
	Waiting []time.Time   // instants of occurrences in Redis; of some the due time may have passed

	Trouble Trouble // the last one to publish an occurrence; zero: there was none

	Definition string    // what the instants follow from
	Next       time.Time // when the first of those that wait is due; zero: none waits, or it was not asked for
}

// Alive tells whether there is a schedule.
func (r Recurring) Alive() bool { return r.Version > 0 && !r.Removed && !r.Damaged }

// Trouble is what kept a program from publishing an occurrence of a recurring schedule.
type Trouble struct {
	At    time.Time
	InRow int    // failures since an occurrence was last published; 0: one was after it
	Host  string // of the program, "" if that is not known
	Error string // at most 512 bytes of it
}

// IsStopped tells whether no occurrence is published until a resume. A pause with an end is in the
// cursor instead: what comes after its end is published ahead, as ever.
func (r Recurring) IsStopped() bool { return !r.Paused.IsZero() && r.Until.IsZero() }

// Passed returns up to when instants have passed by now. That includes those that the present pause
// leaves out, if it has an end.
func (r Recurring) Passed(now time.Time) time.Time {
	if r.Until.After(now) {
		now = r.Until
	}
	return now.Add(-r.Jitter)
}

var (
	recurringRecord = regexp.MustCompile(`^(\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\S+) (\S+) (\S+) (.*)$`)
	leadingDigits   = regexp.MustCompile(`^\d*`)
)

// readRecurring reads a record as it counts by now; "" is none.
func readRecurring(name, text string, now time.Time) Recurring {
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
	r.readPause(parts[11], now)
	r.Trouble = readTrouble(parts[12])
	r.Definition = parts[13]
	return r
}

// readPause reads what a record says of its pause. One that is over by now counts no more.
func (r *Recurring) readPause(text string, now time.Time) {
	part := append(strings.SplitN(text, ",", 3), "", "")
	if until := Instant(part[0]); until.UnixMilli() > 0 {
		if !until.After(now) {
			r.Paused = time.Time{}
			return
		}
		r.Until = until
	}
	if !r.Paused.IsZero() {
		r.By, r.Why = DecodeName(part[1]), DecodeName(part[2])
	}
}

// readTrouble reads a failure as it is stored.
func readTrouble(text string) (f Trouble) {
	part := strings.SplitN(text, ",", 4)
	if len(part) < 4 {
		return f
	}
	f = Trouble{At: Instant(part[0]), Host: DecodeName(part[2]), Error: DecodeName(part[3])}
	f.InRow, _ = strconv.Atoi(part[1])
	return f
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
	draft := t.Draft(&schedulesScript, Target{}, "address", address, "valid", ProgramsFor)
	draft.Each("schedule", "name", ":")
	for _, name := range names {
		draft.Each("schedule", "name", EncodeName(name))
	}
	call := draft.Call()
	if err := Do(ctx, t.client, call); err != nil {
		return now, "", nil, err
	}
	reply, err := call.Read()
	if err != nil {
		return now, "", nil, fmt.Errorf("schedules: %w", err)
	}
	now = Instant(reply.Text("now"))
	for _, one := range reply.Each() {
		records = append(records, readRecurring(one.Text("name"), one.Text("record"), now))
	}
	if len(records) != len(names) {
		return now, "", nil, fmt.Errorf("schedules: unexpected reply about %d of %d", len(records), len(names))
	}
	return now, reply.Text("amended"), records, nil
}

// SchedulesCall returns a call that reads some records of recurring schedules, from a cursor on.
// "0" begins. ReadSchedules reads its reply.
func (t *Topic) SchedulesCall(cursor string) *Call {
	return t.NewCall(&reviewScript, Target{}, "cursor", cursor)
}

// ReadSchedules returns the records that SchedulesCall has read, the server's time, and the cursor
// of the next call. "0" ends. A schedule may come twice.
func ReadSchedules(call *Call) (records []Recurring, now time.Time, next string, err error) {
	reply, err := call.Read()
	if err != nil {
		return nil, now, "", fmt.Errorf("schedules: %w", err)
	}
	now = Instant(reply.Text("now"))
	for _, part := range reply.Each() {
		r := readRecurring(part.Text("name"), part.Text("record"), now)
		r.Next, r.Last = Instant(part.Text("next")), Instant(part.Text("last"))
		records = append(records, r)
	}
	return records, now, reply.Text("next_cursor"), nil
}

// Amendment is a change of a recurring schedule. The fields after Name are for some kinds only.
type Amendment struct {
	What Amend
	Name string

	Seen       int64         // the version that the caller has seen; for Put, Ask, Answer, Return and Fail
	Definition string        // for Put
	Jitter     time.Duration // for Put
	First      time.Time     // no occurrence is earlier; for Put
	Known      time.Time     // an instant whose occurrence was due when the caller looked; for Return

	For     time.Duration // how long the pause lasts, rounded up to ms; 0: until a resume; for Pause
	By, Why string        // for Pause
	Error   string        // why an occurrence could not be published; for Fail
}

// failureSize is how many bytes of an error a record keeps.
const failureSize = 512

// note is what the amendment adds to the record as a text.
func (a Amendment) note() string {
	switch a.What {
	case PauseSchedule:
		return EncodeName(a.By) + "," + EncodeName(a.Why)
	case FailSchedule:
		text := strings.ToValidUTF8(a.Error[:min(len(a.Error), failureSize)], "")
		return EncodeName(thisProcess().Host) + "," + EncodeName(text)
	}
	return ""
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
	FailSchedule     Amend = "fail"   // notes that this program could not publish an occurrence
	ReturnSchedule   Amend = "return" // counts from now on, if the last occurrence was due more than MostAhead after now
)

// MostAhead is by how much the last occurrence of a schedule may be after the server's clock. More
// means that the clock was ahead. Less is waited out, because the clocks of two servers differ.
var MostAhead = time.Duration(amendScript.Constant("ahead")) * time.Millisecond

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
	operation := t.keys.Operation(Token())
	err = t.with(ctx, read, func(groups *Groups) error {
		calls := make([]*Call, len(amendments))
		for i, a := range amendments {
			calls[i] = t.NewCall(&amendScript, Target{}, "operation", operation, "version", groups.Version, "recorded", groups.Recorded, "what", string(a.What),
				"name", EncodeName(a.Name), "memory", OperationMemory, "seen", a.Seen, "definition", a.Definition, "jitter", a.Jitter,
				"first", max(a.First.UnixMilli(), 0), "known", max(a.Known.UnixMilli(), 0),
				"lasts", CeilMillis(a.For), "note", a.note())
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
	reply, err := call.Read()
	if err != nil {
		return a, fmt.Errorf("amend: %w", err)
	}
	outcome := reply.Text("outcome")
	if outcome == "stale" {
		return a, ErrStale
	}
	a.Changed, a.Missing, a.TakenBack = outcome == "changed", outcome == "missing", reply.Number("taken_back")
	a.Record = readRecurring(EncodeName(name), reply.Text("record"), Instant(reply.Text("now")))
	return a, nil
}

// Handling is one handling of an occurrence, in one group.
type Handling struct {
	topic      *Topic
	key, group string
	occurrence string
	token      string
	lease      time.Duration
}

// Handle returns a handling of an occurrence, which Begin starts. It is valid for a lease, and for
// another one after each Extend.
func (t *Topic) Handle(schedule, group string, at time.Time, lease time.Duration) *Handling {
	return &Handling{t, t.keys.Handling(schedule, group), group, strconv.FormatInt(at.UnixMilli(), 10), Token(), lease}
}

// MostPlaces is how many messages with one key may be handled at once at most: each takes a call.
const MostPlaces = 32

// Places returns handlings of a message, one for each place that its key has in a group. No two
// messages have the same place at a time.
func (t *Topic) Places(key, group, id string, n int, lease time.Duration) []*Handling {
	places := make([]*Handling, n)
	for i := range places {
		places[i] = &Handling{t, t.keys.Place(i, key, group), group, id, Token(), lease}
	}
	return places
}

// Keep extends the handling until end is called. lost is told when it may be valid no more.
func (h *Handling) Keep(lost func(error)) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(h.lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			valid, err := h.Extend(ctx)
			if ctx.Err() == nil && (err != nil || !valid) {
				lost(cmp.Or(err, errLeasePassed))
			}
		}
	}()
	return func() error {
		cancel()
		<-ended
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return h.End(ctx)
	}
}

var errLeasePassed = errors.New("the Lease has passed")

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
	call := h.topic.NewCall(&overlapScript, Target{Group: h.group}, "handling", h.key, "what", what, "occurrence", h.occurrence, "token", h.token,
		"lease", h.lease, "again", again, "counts", counts)
	if err := Do(ctx, h.topic.client, call); err != nil {
		return false, err
	}
	return call.cmd.Bool()
}

// MoveHandling returns the text of a key of Handling with its times up to upTo moved by d, and
// whether it has any. A time is in milliseconds of the Unix epoch.
func MoveHandling(text string, d time.Duration, upTo float64) (moved string, is bool) {
	part := strings.Fields(text)
	if len(part) != 3 {
		return text, false
	}
	next := strings.Split(part[0], ",")
	for _, at := range []*string{&next[len(next)-1], &part[2]} {
		if at == &next[0] { // none is next
			continue
		}
		if ms, err := strconv.ParseInt(*at, 10, 64); err == nil && ms > 0 && float64(ms) <= upTo {
			*at, is = strconv.FormatInt(ms+d.Milliseconds(), 10), true
		}
	}
	part[0] = strings.Join(next, ",")
	return strings.Join(part, " "), is
}
