package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// TopicMemory is an estimate of what a topic takes in Redis, in bytes. A message in several groups
// counts in the state that it has in each.
type TopicMemory struct {
	Topic string `json:"topic"`

	// Partitions is how many partitions the topic has; 0 for a plain one.
	Partitions int `json:"partitions,omitempty"`

	Bytes    int `json:"bytes"` // the sum of all below
	Waiting  int `json:"waiting_bytes"`
	Ready    int `json:"ready_bytes"`
	InHand   int `json:"in_hand_bytes"`
	Retrying int `json:"retrying_bytes"`
	Dead     int `json:"dead_bytes"`
	Other    int `json:"other_bytes"` // of no message: delay IDs, groups, schedules

	// LeftOut says what is not in these numbers, and why; "" if all is.
	LeftOut string `json:"left_out,omitempty"`
}

// Most returns the state whose messages take the most, and how much that is.
func (m TopicMemory) Most() (State, int) {
	most, bytes := Waiting, m.Waiting
	for _, of := range []struct {
		state State
		bytes int
	}{{Ready, m.Ready}, {InHand, m.InHand}, {Retrying, m.Retrying}, {Dead, m.Dead}} {
		if of.bytes > bytes {
			most, bytes = of.state, of.bytes
		}
	}
	return most, bytes
}

func (m *TopicMemory) add(part TopicMemory) {
	m.Bytes, m.Waiting, m.Ready, m.InHand = m.Bytes+part.Bytes, m.Waiting+part.Waiting, m.Ready+part.Ready, m.InHand+part.InHand
	m.Retrying, m.Dead, m.Other = m.Retrying+part.Retrying, m.Dead+part.Dead, m.Other+part.Other
}

// MemoryOptions says what Memory looks at.
type MemoryOptions struct {
	// Topics are the topics. None means all.
	Topics []string

	// Largest is how many topics are returned, the largest by their bodies. Default 20. Negative
	// means all.
	Largest int

	only func(t *operate.Topic) bool // nil: all
}

// MemoryUse is the result of Memory.
type MemoryUse struct {
	Topics []TopicMemory `json:"topics"` // the largest first
	Looked int           `json:"looked"` // topics, of which these are the largest
}

// Memory estimates what topics take in Redis, by MEMORY USAGE with 50 samples of each key, and by
// the length of about 200 messages of each topic. All topics are asked for the size of their
// bodies. Only the largest are looked at by state. The cost does not grow with the number of
// messages. A Redis Stream of a topic does not count. Without Topics, one that cannot be read keeps
// no other from its turn: TopicMemory.LeftOut says why. Errors wrap ErrNotFound for a topic that
// does not exist, ErrForbidden without +memory|usage and +hstrlen, or come from ctx or Redis.
func (a *Admin) Memory(ctx context.Context, o MemoryOptions) (MemoryUse, error) {
	use, err := a.memory(ctx, o)
	if err != nil {
		return MemoryUse{}, fmt.Errorf("memory: %w", err)
	}
	return use, nil
}

func (a *Admin) memory(ctx context.Context, o MemoryOptions) (MemoryUse, error) {
	names, err := a.Plain(ctx, o.Topics...)
	for cursor := ""; err == nil && len(o.Topics) == 0; {
		var page []string
		if page, cursor, err = a.Topics(ctx, cursor, 1000); err == nil {
			names = append(names, page...)
		}
		if cursor == "" {
			break
		}
	}
	if err != nil {
		return MemoryUse{}, err
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var topics []*operate.Topic
	for _, name := range names {
		t, err := a.handle(name)
		if err != nil {
			return MemoryUse{}, err
		}
		if o.only == nil || o.only(t) {
			topics = append(topics, t)
		}
	}
	bodies, err := operate.BodiesOf(ctx, topics)
	if err != nil {
		return MemoryUse{}, err
	}
	named := map[string]bool{}
	for _, name := range o.Topics {
		named[name] = true
	}
	type whole struct {
		TopicMemory
		bodies int
		plain  []*operate.Topic
	}
	var wholes []*whole
	known := map[string]*whole{}
	for i, t := range topics {
		topic, _, parted := partitions.Parse(t.Name)
		var of []string // a partition may be named, and so may the whole
		if !parted || named[t.Name] {
			of = append(of, t.Name)
		}
		if parted && (!named[t.Name] || named[topic]) {
			of = append(of, topic)
		}
		for _, name := range of {
			w := known[name]
			if w == nil {
				w = &whole{TopicMemory: TopicMemory{Topic: name}}
				known[name], wholes = w, append(wholes, w)
			}
			if name != t.Name {
				w.Partitions++
			}
			w.bodies, w.plain = w.bodies+bodies[i], append(w.plain, t)
		}
	}
	slices.SortStableFunc(wholes, func(a, b *whole) int { return cmp.Compare(b.bodies, a.bodies) })
	use := MemoryUse{Topics: []TopicMemory{}, Looked: len(wholes)}
	if most := cmp.Or(o.Largest, 20); most >= 0 && most < len(wholes) {
		wholes = wholes[:most]
	}
	for _, w := range wholes {
		found := false
		for _, t := range w.plain {
			part, err := a.memoryOf(ctx, t)
			if errors.Is(err, ErrNotFound) && (len(o.Topics) == 0 || len(w.plain) > 1) {
				continue // it was removed meanwhile
			}
			ends := errors.Is(err, ErrForbidden) || ctx.Err() != nil || servers.Unreachable(err) && !a.client.Cluster()
			switch {
			case err == nil:
				w.add(part)
			case len(o.Topics) > 0 || ends:
				return use, fmt.Errorf("topic %q: %w", t.Name, err)
			case w.LeftOut == "" && t.Name == w.Topic:
				w.LeftOut = "all: " + err.Error()
			case w.LeftOut == "":
				w.LeftOut = fmt.Sprintf("partition %q: %v", t.Name, err)
			}
			found = true
		}
		if found {
			use.Topics = append(use.Topics, w.TopicMemory)
		}
	}
	slices.SortStableFunc(use.Topics, func(a, b TopicMemory) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return use, nil
}

// memoryOf returns what a plain topic takes. Its Topic is "".
func (a *Admin) memoryOf(ctx context.Context, t *operate.Topic) (TopicMemory, error) {
	if _, err := a.permits.Try(ctx, t.Topic, rights.Measuring); err != nil {
		return TopicMemory{}, err
	}
	counts, err := t.Stats(ctx)
	if err != nil {
		return TopicMemory{}, err
	}
	found, err := t.Memory(ctx, counts)
	if err != nil {
		return TopicMemory{}, err
	}
	m := TopicMemory{Waiting: found.ByState[operate.Waiting], Ready: found.ByState[operate.Ready], InHand: found.ByState[operate.InHand],
		Retrying: found.ByState[operate.Retrying], Dead: found.ByState[operate.Dead], Other: found.Other}
	m.Bytes = m.Waiting + m.Ready + m.InHand + m.Retrying + m.Dead + m.Other
	return m, nil
}

// largest remembers the largest topic of each server for a while, because a page diagnoses its
// topics in many parts.
type largest struct {
	turn  chan struct{} // has an item while a call reads or changes known
	known map[string]largestOf
}

type largestOf struct {
	at  time.Time
	use MemoryUse
}

const largestFor = 30 * time.Second

// largestOn returns the largest topics of a server.
func (a *Admin) largestOn(ctx context.Context, master string) (MemoryUse, error) {
	select {
	case a.largest.turn <- struct{}{}:
		defer func() { <-a.largest.turn }()
	case <-ctx.Done():
		return MemoryUse{}, ctx.Err()
	}
	if known, ok := a.largest.known[master]; ok && time.Since(known.at) < largestFor {
		return known.use, nil
	}
	use, err := a.memory(ctx, MemoryOptions{Largest: 3, only: func(t *operate.Topic) bool {
		its, err := t.Master(ctx)
		return err == nil && its == master
	}})
	if err != nil {
		return use, err
	}
	if a.largest.known == nil {
		a.largest.known = map[string]largestOf{}
	}
	a.largest.known[master] = largestOf{time.Now(), use}
	return use, nil
}

// fills says which topic takes the most of a server's memory, "" if there is none.
func (d *doctor) fills(ctx context.Context, master string) (string, error) {
	use, err := d.admin.largestOn(ctx, master)
	if err != nil || len(use.Topics) == 0 || use.Topics[0].Bytes == 0 { // those that cannot be read are last
		return "", err
	}
	m := use.Topics[0]
	state, bytes := m.Most()
	return fmt.Sprintf(" Topic %q takes the most, about %s, of which %s are of messages %s.",
		m.Topic, texts.Bytes(m.Bytes), texts.Bytes(bytes), stateWords(state)), nil
}

// stateWords returns a state in words, as in "messages in hand".
func stateWords(s State) string {
	return map[State]string{Waiting: "that wait", Ready: "that are ready", InHand: "in hand", Retrying: "that are retried", Dead: "that are dead"}[s]
}

// String says how a MemoryUse was found, and what was left out.
func (u MemoryUse) String() string {
	which := "all"
	if len(u.Topics) < u.Looked {
		which = "the largest"
	}
	said := fmt.Sprintf("These are %s of %s, estimated by %d samples of each key.", which, texts.Many(u.Looked, "topic"), operate.MemorySamples)
	left := 0
	for _, m := range u.Topics {
		switch {
		case m.LeftOut == "":
		case left == mostLeftOut:
			return said + " Left out: more."
		default:
			said += fmt.Sprintf(" Left out of topic %q: %s.", m.Topic, strings.TrimRight(m.LeftOut, "."))
			left++
		}
	}
	return said
}
