package faulttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// publish publishes all messages, or until the process is stopped.
func (p *process) publish() error {
	others := goleak.IgnoreCurrent()
	publisher, err := p.publisher(redisdelay.PublisherConfig{
		Client: p.client, KeyPrefix: p.Prefix, MaxMessageBytes: max(8<<20, p.Payload+1<<20),
		CloseTimeout: ms(cmp.Or(p.CloseTimeoutMS, 5000)), WaitReplicas: p.WaitReplicas,
	})
	if err != nil {
		return err
	}
	operator, err := admin.New(admin.Config{Client: p.client, KeyPrefix: p.Prefix})
	if err != nil {
		return err
	}
	tell("ready")
	var next atomic.Int64
	next.Store(int64(p.First))
	var callers sync.WaitGroup
	for range max(p.Callers, 1) {
		callers.Go(func() {
			for p.ending.Err() == nil {
				last := int(next.Add(int64(max(p.Batch, 1))))
				first := last - max(p.Batch, 1)
				if p.Messages > 0 && first >= p.First+p.Messages {
					return
				}
				p.call(publisher, operator, first, last)
				p.pause()
			}
		})
	}
	callers.Wait()
	tell("done")
	<-p.stopped
	p.close(others, publisher.Close)
	return nil
}

func (p *process) pause() {
	select {
	case <-time.After(ms(p.PauseMS)):
	case <-p.stopped:
	}
}

// call calls Publish once, with the messages from first to before last, of one topic. Those with a
// key are due at an instant.
func (p *process) call(publisher message.Publisher, operator *admin.Admin, first, last int) {
	topic := p.Topics[first/max(p.Batch, 1)%len(p.Topics)]
	var messages []*message.Message
	var notes []Event
	var cancels []string
	asked, now := time.Now().UnixNano(), p.clock()
	for i := first; i < last; i++ {
		msg, delay := p.message(i)
		sum := SumOf(msg)
		if p.CancelEvery > 0 && i%p.CancelEvery == 0 {
			delay = int(cancelledDelay.Milliseconds())
			redisdelay.SetDelayID(msg, msg.UUID, redisdelay.DelayIDReject)
			cancels = append(cancels, msg.UUID)
		}
		note := Event{Kind: Publish, Sent: asked, Redis: now, Topic: topic, UUID: msg.UUID, Sum: sum, Delay: int64(delay)}
		switch {
		case p.Keys > 0:
			p.keyed(&note, msg)
		case delay > 0:
			redisdelay.DelayFor(msg, ms(delay))
		}
		messages, notes = append(messages, msg), append(notes, note)
	}
	if p.CancelCallerMS > 0 && first/max(p.Batch, 1)%10 > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(ms(p.CancelCallerMS)))))
		defer cancel()
		for _, msg := range messages {
			msg.SetContext(ctx)
		}
	}
	p.journal.Write(notes...)
	err := publisher.Publish(topic, messages...)
	for i := range notes {
		err := errorOf(err, messages[i])
		notes[i].Kind = outcomeOf(err)
		if err != nil {
			notes[i].Err = err.Error()
		}
	}
	p.journal.Write(notes...)
	if outcomeOf(err) != Failed {
		for _, uuid := range cancels {
			p.cancel(operator, topic, uuid, err == nil)
		}
	}
}

// outcomeOf returns whether a failed call of Publish may have published: Failed or Unknown.
func outcomeOf(err error) Kind {
	switch {
	case err == nil:
		return Published
	case errors.Is(err, redisdelay.ErrMaybePublished), errors.Is(err, redisdelay.ErrNotReplicated):
		return Unknown
	default:
		return Failed
	}
}

// message returns the i-th message and its delay in ms.
func (p *process) message(i int) (*message.Message, int) {
	uuid := fmt.Sprintf("%s-%d", p.Name, i)
	payload := make([]byte, cmp.Or(p.Payload, 32))
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}).Read(payload)
	msg := message.NewMessage(uuid, payload)
	msg.Metadata.Set("made by", p.Name)
	if len(p.Do) > 0 {
		msg.Metadata.Set(doKey, p.Do[i%len(p.Do)])
	}
	if p.Keys > 0 {
		partition.SetKey(msg, p.keyOf(i))
	}
	if len(p.DelaysMS) == 0 {
		return msg, 0
	}
	return msg, p.DelaysMS[i%len(p.DelaysMS)]
}

// cancelledDelay is the delay of messages that will be cancelled.
const cancelledDelay = time.Hour

// cancel cancels a message, and retries until it knows the outcome. there says whether the message
// exists.
func (p *process) cancel(operator *admin.Admin, topic, uuid string, there bool) {
	note := Event{Kind: Cancel, Topic: topic, UUID: uuid}
	p.journal.Write(note)
	for {
		var sent count
		err := operator.Cancel(countTries(context.Background(), &sent), topic, admin.ByDelayID(uuid))
		if err == nil || errors.Is(err, admin.ErrNotFound) {
			note.Kind = Cancelled
			if err != nil {
				note.Err = err.Error()
				if there && sent.tries.Load() == 1 { // otherwise a call whose answer was lost cancelled it
					note.Kind = NotThere
				}
			}
			p.journal.Write(note)
			return
		}
		there = false // now unknown
		time.Sleep(20 * time.Millisecond)
	}
}
