package faulttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// handle handles a message as its metadata says.
func (p *process) handle(msg *message.Message) {
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	note := Event{
		Token: p.tokens.of(msg),
		Topic: delivery.Topic, Group: delivery.Group, UUID: msg.UUID, ID: delivery.ID, Number: delivery.Number,
		Due: delivery.DueAt.UnixMilli(),
	}
	start := note
	start.Sent = time.Now().UnixNano() // reading the clock may take a while
	start.Kind, start.Redis, start.Sum, start.Epoch = Start, p.clock(), SumOf(msg), delivery.Epoch
	p.journal.Write(start)
	over := note
	over.Kind = Over
	context.AfterFunc(msg.Context(), func() { p.journal.Write(over) })
	if p.Stuck {
		select {}
	}
	if p.WorkMS > 0 {
		h := fnv.New32a()
		fmt.Fprint(h, p.Name, msg.UUID, delivery.Number)
		time.Sleep(time.Duration(h.Sum32()) % (ms(p.WorkMS) + 1))
	}

	end := note
	end.Kind, end.Outcome = End, "ack"
	var times, delay int
	switch do := msg.Metadata[doKey]; {
	case do == Die:
		kill()
	case do == Hang:
		<-msg.Context().Done()
		end.Outcome = "nack"
	case strings.HasPrefix(do, "work "):
		if _, err := fmt.Sscanf(do, "work %d", &delay); err == nil {
			time.Sleep(ms(delay))
		}
	case strings.HasPrefix(do, "hold "):
		p.awaitRelease(strings.TrimPrefix(do, "hold "))
	case strings.HasPrefix(do, "nack "):
		if _, err := fmt.Sscanf(do, "nack %d %d", &times, &delay); err == nil && delivery.Number <= times {
			end.Outcome, end.Delay = "nack", int64(delay)
		}
	}
	if end.Outcome == "ack" {
		p.journal.Write(end)
		msg.Ack()
		return
	}
	if delay >= 0 {
		redisdelay.DelayFor(msg, ms(delay))
	}
	end.Sent, end.Redis = time.Now().UnixNano(), p.clock()
	p.journal.Write(end)
	msg.Nack()
}

// awaitRelease waits for World.Release.
func (p *process) awaitRelease(name string) {
	for !exists(released(p.Dir, name)) {
		time.Sleep(2 * time.Millisecond)
	}
}

// SumOf returns a checksum of all that a consumer must get unchanged.
func SumOf(msg *message.Message) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", msg.UUID)
	var keys []string
	for key := range msg.Metadata {
		if !strings.HasPrefix(key, "_watermill_") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprintf(h, " %q:%q", key, msg.Metadata[key])
	}
	h.Write(msg.Payload)
	return hex.EncodeToString(h.Sum(nil)[:8])
}
