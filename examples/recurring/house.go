package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

const (
	heartbeats = 4 // until the example ends
	backupTime = 1500 * time.Millisecond
)

// house handles the occurrences, in both processes.
type house struct {
	timeline example.Timeline
	done     func()

	mu      sync.Mutex
	beats   map[time.Time]int // how often each heartbeat came
	backups int
	open    int // backups that are being made
	overlap bool
}

func newHouse(done func()) *house {
	return &house{timeline: example.NewTimeline(), done: done, beats: map[time.Time]int{}}
}

// message makes the message of an occurrence, some time before it is due.
func (h *house) message(o periodic.Occurrence) (*message.Message, error) {
	return message.NewMessage(watermill.NewUUID(), []byte(o.Schedule)), nil
}

func (h *house) onHeartbeat(msg *message.Message) error {
	o, ok := periodic.FromMessage(msg)
	if !ok {
		return errors.New("it is no occurrence")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats[o.At]++
	h.timeline.Printf("heartbeat %d", len(h.beats))
	if len(h.beats) == heartbeats {
		h.done()
	}
	return nil
}

func (h *house) onBackup(msg *message.Message) error {
	h.begin(1)
	defer h.begin(-1)
	h.timeline.Printf("a backup begins")
	select {
	case <-time.After(backupTime):
	case <-msg.Context().Done():
	}
	h.timeline.Printf("the backup ends")
	return nil
}

// begin counts the backups that are being made.
func (h *house) begin(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open += n
	h.backups += max(n, 0)
	h.overlap = h.overlap || h.open > 1
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// routers ended, nil if all was done.
func (h *house) summary(why error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	twice := 0
	for _, times := range h.beats {
		twice += times - 1
	}
	fmt.Printf("\n%d heartbeats, %d of them twice; %d backups, overlapping: %v.\n", len(h.beats), twice, h.backups, h.overlap)
	switch {
	case why != nil:
		return fmt.Errorf("%d of %d heartbeats came: %w", len(h.beats), heartbeats, why)
	case twice > 0 || h.overlap || h.backups == 0:
		return errors.New("wrong")
	}
	return nil
}
