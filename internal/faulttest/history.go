package faulttest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is what an Event tells of.
type Kind string

// What is about to happen is written before, so that a process that is killed leaves word of it.
const (
	Publish   Kind = "publish"   // a call of Publish begins; an event for each message
	Published Kind = "published" // it succeeded
	Failed    Kind = "failed"    // it failed: the message is not in Redis
	Unknown   Kind = "unknown"   // it failed, and nobody knows
	Cancel    Kind = "cancel"    // a call of admin.Cancel begins
	Cancelled Kind = "cancelled" // it succeeded
	NotThere  Kind = "not there" // it found nothing, and no earlier try of it can have taken that back

	Ask      Kind = "ask"      // a claim goes to Redis
	Answer   Kind = "answer"   // Redis has answered, or there is no answer: Err
	Claimed  Kind = "claimed"  // a message that the answer brought
	Start    Kind = "start"    // a handler has got a message
	Over     Kind = "over"     // the context of a message that a handler has got has ended
	End      Kind = "end"      // it is about to Ack or Nack: Outcome
	Settle   Kind = "settle"   // an ack, nack or release goes to Redis: Script
	Settled  Kind = "settled"  // Redis has settled Count of the Of messages of the call
	Refused  Kind = "refused"  // Redis has answered what was to be settled or extended with an error: Err
	Unsure   Kind = "unsure"   // there is no answer, so nobody knows whether it was settled or extended: Err
	Extend   Kind = "extend"   // an extension goes to Redis
	Extended Kind = "extended" // Redis has extended the lease
	Lost     Kind = "lost"     // Redis has said that the lease is lost

	Dead    Kind = "dead"    // found among the dead letters at the end
	Closed  Kind = "closed"  // the worker has closed what it has of the project: Took, Outcome of the client, Err
	Logged  Kind = "logged"  // the worker's program logged an error: Err
	Killed  Kind = "killed"  // the test has killed the worker
	Up      Kind = "up"      // a consumer of Group is at work, from now on or again
	Down    Kind = "down"    // it is not: frozen, about to end, or dead
	Outage  Kind = "outage"  // from Sent to At some worker could not reach the server: Err says why
	Stepped Kind = "stepped" // the test sets the server's clock, or has set it
	Gone    Kind = "gone"    // a look at Redis missed a message that the last look, which began at Sent, saw: Outcome, Token
)

// ClientOpen is the Outcome of a client that a closed worker can still use.
const ClientOpen = "open"

// Event is an entry of the history. Which fields are set depends on its Kind.
type Event struct {
	Kind Kind   `json:"kind"`
	By   string `json:"by"`             // the worker
	At   int64  `json:"at"`             // ns, by the clock of this machine, which all workers share
	Sent int64  `json:"sent,omitempty"` // likewise: when what has now been answered was asked; of Publish, Start and End when the server was asked for its time
	Call int    `json:"call,omitempty"` // of the worker, the same in what is asked and answered

	// Redis is the server's time in µs, as the event itself tells it (Claimed), or as it was read just before.
	// Zero: not known.
	Redis int64 `json:"redis,omitempty"`

	Topic   string `json:"topic,omitempty"`
	Group   string `json:"group,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	ID      string `json:"id,omitempty"`
	Token   string `json:"token,omitempty"`   // of the lease; of an Ask, what the tokens of its leases begin with
	Sum     string `json:"sum,omitempty"`     // of the contents
	Delay   int64  `json:"delay,omitempty"`   // ms
	Due     int64  `json:"due,omitempty"`     // ms, by the server's clock
	Lease   int64  `json:"lease,omitempty"`   // ms
	Number  int    `json:"number,omitempty"`  // of a delivery; of a dead letter, those that it has counted
	Suspect bool   `json:"suspect,omitempty"` // its lease has expired since its last nack
	Script  string `json:"script,omitempty"`
	Outcome string `json:"outcome,omitempty"` // "ack" or "nack"; of a nack that gives up, "dead" or "undelivered"; of what is Dead, its record; of what is Gone, its state when it was seen last; of what Closed, ClientOpen
	Count   int    `json:"count,omitempty"`
	Of      int    `json:"of,omitempty"`
	Tries   int    `json:"tries,omitempty"` // how often the client sent the call; 0: not known
	Took    int64  `json:"took,omitempty"`  // ns
	Err     string `json:"err,omitempty"`
}

func (e Event) String() string {
	text, _ := json.Marshal(e)
	return string(text)
}

// Journal is the part of the history that one process writes: a file, a line for each event. What was
// written stays when the process is killed.
type Journal struct {
	by   string
	mu   sync.Mutex
	file *os.File
}

// OpenJournal opens or makes the journal of a worker in a directory.
func OpenJournal(dir, by string) (*Journal, error) {
	file, err := os.OpenFile(filepath.Join(dir, by+".jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Journal{by: by, file: file}, nil
}

// Write adds events, all in one write. A journal that cannot be written proves nothing, so it panics.
func (j *Journal) Write(events ...Event) {
	var lines bytes.Buffer
	encode := json.NewEncoder(&lines)
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now().UnixNano()
	for _, e := range events {
		e.By, e.At = cmp.Or(e.By, j.by), cmp.Or(e.At, now)
		if err := encode.Encode(e); err != nil {
			panic(err)
		}
	}
	if _, err := j.file.Write(lines.Bytes()); err != nil {
		panic(fmt.Sprintf("faulttest: the journal cannot be written: %v", err))
	}
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }

// reader reads what the journals in a directory have that it has not read yet. The last line of a process that was
// killed may be cut.
type reader struct {
	dir string

	mu   sync.Mutex
	read map[string]int64 // bytes of each journal
}

// lines passes whole lines on that are new. r.mu is held.
func (r *reader) lines(take func(name string, line []byte) error) error {
	files, err := filepath.Glob(filepath.Join(r.dir, "*.jsonl"))
	if err != nil {
		return err
	}
	if r.read == nil {
		r.read = map[string]int64{}
	}
	for _, name := range files {
		data, err := readFrom(name, r.read[name])
		if err != nil {
			return err
		}
		for line := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
			if err := take(name, line); err != nil {
				return err
			}
			r.read[name] += int64(len(line))
		}
	}
	return nil
}

func readFrom(name string, offset int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// history is all events so far, in the order of time.
type history struct {
	reader
	events []Event
	logged []Event
}

// now returns a copy that is the caller's.
func (h *history) now() ([]Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.readOn()
	return slices.Clone(h.events), err
}

// logs counts the errors that workers have logged with a text.
func (h *history) logs(text string) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err = h.readOn()
	for _, e := range h.logged {
		if strings.Contains(e.Err, text) {
			n++
		}
	}
	return n, err
}

// readOn reads what is new. h.mu is held.
func (h *history) readOn() error {
	known := len(h.events)
	err := h.lines(func(name string, line []byte) error {
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %q: %w", name, line, err)
		}
		h.events = append(h.events, e)
		if e.Kind == Logged {
			h.logged = append(h.logged, e)
		}
		return nil
	})
	byTime := func(a, b Event) int { return cmp.Compare(a.At, b.At) }
	if known < len(h.events) { // only what is not before all that is new has to be sorted
		first := slices.MinFunc(h.events[known:], byTime)
		from, _ := slices.BinarySearchFunc(h.events[:known], first, byTime)
		slices.SortStableFunc(h.events[from:], byTime)
	}
	return err
}

// counter counts events while they are written.
type counter struct {
	reader
	kinds map[Kind]int
}

func (c *counter) count(kind Kind) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds == nil {
		c.kinds = map[Kind]int{}
	}
	err := c.lines(func(_ string, line []byte) error {
		rest, _ := bytes.CutPrefix(line, []byte(`{"kind":"`))
		kind, _, _ := bytes.Cut(rest, []byte(`"`))
		c.kinds[Kind(kind)]++
		return nil
	})
	return c.kinds[kind], err
}
