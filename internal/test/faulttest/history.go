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

// Kind is the kind of an Event.
type Kind string

// Events about calls are written before the call, so that they exist even if the process is killed.
const (
	Publish   Kind = "publish"   // a call of Publish begins; an event for each message
	Published Kind = "published" // it succeeded
	Failed    Kind = "failed"    // it failed: the message is not in Redis
	Unknown   Kind = "unknown"   // it failed, and the message may be in Redis
	Cancel    Kind = "cancel"    // a call of admin.Cancel begins
	Cancelled Kind = "cancelled" // it succeeded
	NotThere  Kind = "not there" // it found nothing, and no earlier attempt can have cancelled the message

	Ask      Kind = "ask"      // a claim goes to Redis
	Answer   Kind = "answer"   // Redis has answered, or the call failed: Err
	Claimed  Kind = "claimed"  // a message in the answer
	Start    Kind = "start"    // a handler got a message
	Over     Kind = "over"     // the context of a handler's message has ended
	End      Kind = "end"      // a handler is about to Ack or Nack: Outcome
	Settle   Kind = "settle"   // an ack, nack or release goes to Redis: Script
	Settled  Kind = "settled"  // Redis has settled Count of the Of messages of the call
	Refused  Kind = "refused"  // Redis has refused a settlement or extension with an error: Err
	Unsure   Kind = "unsure"   // there is no answer, so the settlement or extension may have happened: Err
	Extend   Kind = "extend"   // an extension goes to Redis
	Extended Kind = "extended" // Redis has extended the lease
	Lost     Kind = "lost"     // Redis has said that the lease is lost

	Dead    Kind = "dead"    // found among the dead letters at the end
	Closed  Kind = "closed"  // the worker has closed its Publisher or Subscriber: Took, Outcome of the client, Err
	Logged  Kind = "logged"  // the worker's program logged an error: Err
	Killed  Kind = "killed"  // the test has killed the worker
	Up      Kind = "up"      // a consumer of Group is at work, from now on or again
	Down    Kind = "down"    // it is not: frozen, about to end, or dead
	Outage  Kind = "outage"  // from Sent to At some worker could not reach the server: Err says why
	Stepped Kind = "stepped" // the test sets the server's clock, or has set it
	Gone    Kind = "gone"    // a sample of Redis lacks a message that the sample begun at Sent had: Outcome, Token
)

// ClientOpen is the Outcome of a client that a closed worker can still use.
const ClientOpen = "open"

// Event is an entry of the history. Which fields are set depends on its Kind.
type Event struct {
	Kind Kind   `json:"kind"`
	By   string `json:"by"`             // the worker
	At   int64  `json:"at"`             // ns, by the clock of this machine, which all workers share
	Sent int64  `json:"sent,omitempty"` // likewise: when the answered call was sent; of Publish, Start and End when the server was asked for its time
	Call int    `json:"call,omitempty"` // number of the worker's call, the same for request and answer

	// Redis is the server's time in µs, from the event itself (Claimed), or read just before it.
	// Zero means unknown.
	Redis int64 `json:"redis,omitempty"`

	Topic      string `json:"topic,omitempty"`
	Key        string `json:"key,omitempty"` // the partition key of a Publish
	Group      string `json:"group,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	ID         string `json:"id,omitempty"`
	Token      string `json:"token,omitempty"`      // of the lease; of an Ask, the start of its leases' tokens
	Sum        string `json:"sum,omitempty"`        // checksum of the contents
	Delay      int64  `json:"delay,omitempty"`      // ms
	Due        int64  `json:"due,omitempty"`        // ms, by the server's clock; of a Publish, if the message is due at an instant
	Epoch      int64  `json:"epoch,omitempty"`      // with SingleActive, of a Claimed and a Start
	Lease      int64  `json:"lease,omitempty"`      // ms
	Number     int    `json:"number,omitempty"`     // number of a delivery; of a dead letter, its counted deliveries
	Expiries   int    `json:"expiries,omitempty"`   // leases of it that expired in a row
	Partitions int    `json:"partitions,omitempty"` // of the publisher with a Key
	Most       int    `json:"most,omitempty"`       // messages that the consumer of the claim has at once at most
	Script     string `json:"script,omitempty"`
	Outcome    string `json:"outcome,omitempty"` // "ack" or "nack"; of a nack that gives up, "dead" or "undelivered"; of what is Dead, its record; of what is Gone, its state when it was seen last; of what Closed, ClientOpen
	Count      int    `json:"count,omitempty"`
	Of         int    `json:"of,omitempty"`
	Tries      int    `json:"tries,omitempty"` // how often the client sent the call; 0: not known
	Took       int64  `json:"took,omitempty"`  // ns
	Err        string `json:"err,omitempty"`
}

func (e Event) String() string {
	text, _ := json.Marshal(e)
	return string(text)
}

// Journal is the part of the history that one process writes: a file with one line per event.
// Written lines stay when the process is killed.
type Journal struct {
	by   string
	mu   sync.Mutex
	file *os.File
}

// OpenJournal opens or creates the journal of a worker in a directory.
func OpenJournal(dir, by string) (*Journal, error) {
	file, err := os.OpenFile(filepath.Join(dir, by+".jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Journal{by: by, file: file}, nil
}

// Write appends events in one write. It panics on an error, because an incomplete journal proves
// nothing.
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

// reader reads the new lines of the journals in a directory. The last line of a killed process may
// be incomplete.
type reader struct {
	dir string

	mu   sync.Mutex
	read map[string]int64 // bytes of each journal
}

// lines calls take with each new complete line. r.mu is held.
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

// history has all events so far, in order of time.
type history struct {
	reader
	events []Event
	logged []Event
}

// now returns a copy of the events.
func (h *history) now() ([]Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.readOn()
	return slices.Clone(h.events), err
}

// logs counts the errors with a text that workers have logged.
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

// readOn reads new events. h.mu is held.
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
	if known < len(h.events) { // events before all new ones are sorted already
		first := slices.MinFunc(h.events[known:], byTime)
		from, _ := slices.BinarySearchFunc(h.events[:known], first, byTime)
		slices.SortStableFunc(h.events[from:], byTime)
	}
	return err
}

// counter counts events as they are written.
type counter struct {
	reader
	kinds map[Kind]int
	by    map[string]map[Kind]int // by journal
}

func (c *counter) count(kind Kind) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds == nil {
		c.kinds, c.by = map[Kind]int{}, map[string]map[Kind]int{}
	}
	err := c.lines(func(name string, line []byte) error {
		rest, _ := bytes.CutPrefix(line, []byte(`{"kind":"`))
		kind, _, _ := bytes.Cut(rest, []byte(`"`))
		c.kinds[Kind(kind)]++
		if c.by[name] == nil {
			c.by[name] = map[Kind]int{}
		}
		c.by[name][Kind(kind)]++
		return nil
	})
	return c.kinds[kind], err
}

// countOf counts the events of a worker.
func (c *counter) countOf(kind Kind, worker string) (int, error) {
	_, err := c.count(kind)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[filepath.Join(c.dir, worker+".jsonl")][kind], err
}
