package wake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Clock is the clock of a server in this process, which a test moves.
type Clock struct {
	// Addr is the server's address, and Channels those on which somebody listens there. A mailbox
	// of this process is on the server if its client has the address, or if it listens on one of
	// the channels.
	Addr     string
	Channels []string

	// Moved is by how much the server's clock was moved forward since the last Settle.
	Moved time.Duration

	// Passing means that the clock is about to be moved on. Then only timed receivers are woken and
	// waited for.
	Passing bool
}

// Settle moves the clocks of this process's mailboxes on a server along with the server's, and
// wakes their receivers. It waits until all have settled. next is the earliest time by the server's
// clock at which one of them acts by itself, or zero. others are the channels on which other
// processes listen. They are not woken.
//
// If ctx ends before, the error names topics of receivers that have not settled.
func Settle(ctx context.Context, c Clock) (next time.Time, others []string, err error) {
	own := map[string]bool{}
	s := &settling{left: map[*Receiver]struct{}{}, all: make(chan struct{})}
	for _, m := range opened() {
		channels := m.channels()
		for _, channel := range channels {
			own[channel] = true
		}
		if slices.ContainsFunc(channels, func(channel string) bool { return slices.Contains(c.Channels, channel) }) || m.client.Addr() == c.Addr {
			m.moved.Add(int64(c.Moved))
			for _, r := range m.all() {
				if r.timed || !c.Passing {
					s.left[r] = struct{}{}
				}
			}
		}
	}
	for _, channel := range c.Channels {
		if !own[channel] {
			others = append(others, channel)
		}
	}
	next, err = s.await(ctx)
	return next, others, err
}

// opened returns the open mailboxes of the process.
func opened() []*Mailbox {
	mailboxes.Lock()
	defer mailboxes.Unlock()
	return slices.Collect(maps.Keys(mailboxes.all))
}

// channels returns the channels on which the mailbox listens.
func (m *Mailbox) channels() (channels []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		channels = append(channels, b.channel)
	}
	return channels
}

// Now returns the time of the process's own clock. If a test moves the clock of the mailbox's
// server, this one moves along.
func (m *Mailbox) Now() time.Time { return time.Now().Add(time.Duration(m.moved.Load())) }

// settling waits for receivers.
type settling struct {
	all chan struct{} // closed when none is left

	mu   sync.Mutex // guards the fields below
	left map[*Receiver]struct{}
	next time.Time
}

// await wakes the receivers that are left, and waits for them.
func (s *settling) await(ctx context.Context) (next time.Time, err error) {
	woken := slices.Collect(maps.Keys(s.left))
	if len(woken) == 0 {
		return time.Time{}, nil
	}
	for _, r := range woken {
		r.wake("", func(next time.Time) { s.settled(r, next) })
	}
	select {
	case <-s.all:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) > 0 {
		return s.next, fmt.Errorf("topics %s: %w", s.names(), ctx.Err())
	}
	return s.next, nil
}

// settled notes that a receiver has settled, and when it acts again by itself.
func (s *settling) settled(r *Receiver, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !next.IsZero() && (s.next.IsZero() || next.Before(s.next)) {
		s.next = next
	}
	if delete(s.left, r); len(s.left) == 0 {
		close(s.all)
	}
}

// names returns the topics of receivers that have not settled, a few of them. s.mu is held.
func (s *settling) names() string {
	names := map[string]struct{}{}
	for r := range s.left {
		if r.topic != nil && len(names) < 10 {
			names[fmt.Sprintf("%q", r.topic.Name)] = struct{}{}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
