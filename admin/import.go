package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// importedAtOnce is how many dead letters one call of Publish takes.
const importedAtOnce = 500

// Import says how ImportDead publishes dead letters, and reports its progress.
type Import struct {
	// EveryGroup has the dead letters go to groups that did not export them, too. Default false:
	// ErrInvalidArgument if the topic has such groups.
	EveryGroup bool

	DryRun   bool           // count, and publish nothing
	Progress func(Progress) // if not nil, called after each chunk of at most 500 dead letters
}

// Imported is what ImportDead did, or would do in a dry run.
type Imported struct {
	Letters int // were published
	LeftOut int // were imported within the last hour already

	// From are the groups that the dead letters were in, and Others the other groups of the topic.
	From, Others []string
}

// ImportDead publishes exported dead letters, due now. They are new messages with the UUID,
// metadata and payload of the old ones. Every group of the topic gets them: see Import. Requeue
// brings dead letters that are still there back to their own group.
//
// A dead letter that was imported within the last hour is left out, so an import that was
// interrupted can be repeated. When ctx ends, ImportDead finishes its chunk. It needs the rights of
// a publisher and of an admin. It ranges over letters twice; ReadLetters makes them.
//
// Errors wrap ErrNotFound if there is no such topic, or ErrInvalidArgument. Others come from
// letters or from Publish. With an error, Imported has what was done before it.
func (a *Admin) ImportDead(ctx context.Context, topic string, letters iter.Seq2[Letter, error], o Import) (Imported, error) {
	done, err := a.importDead(ctx, topic, letters, o)
	if err != nil {
		err = fmt.Errorf("import dead letters into topic %q: %w", topic, err)
	}
	return done, err
}

func (a *Admin) importDead(ctx context.Context, topic string, letters iter.Seq2[Letter, error], o Import) (done Imported, err error) {
	before, err := a.Stats(ctx, topic)
	if err != nil {
		return done, err
	}
	count, from := 0, map[string]bool{}
	for l, err := range letters { // all, before anything is published
		if err != nil {
			return done, err
		}
		count++
		from[l.Group] = true
	}
	done.From = slices.Sorted(maps.Keys(from))
	for _, g := range before.Groups {
		if count > 0 && !from[g.Group] {
			done.Others = append(done.Others, g.Group)
		}
	}
	switch {
	case o.DryRun:
		done.Letters = count
		return done, nil
	case len(done.Others) > 0 && !o.EveryGroup:
		return done, fmt.Errorf("%w: groups %s did not export them; EveryGroup has these get them, too", ErrInvalidArgument, quoted(done.Others))
	}
	publisher, err := a.publisherTo(before)
	if err != nil {
		return done, err
	}
	defer publisher.Close()
	var chunk []*message.Message
	publish := func() error {
		if err := ctx.Err(); err != nil || len(chunk) == 0 {
			return err
		}
		if err := publisher.Publish(topic, chunk...); err != nil {
			return err
		}
		done.Letters += len(chunk)
		chunk = chunk[:0]
		if o.Progress != nil {
			o.Progress(Progress{Looked: done.Letters, Done: done.Letters})
		}
		return nil
	}
	for l, err := range letters {
		if err != nil {
			return done, err
		}
		if chunk = append(chunk, again(l)); len(chunk) == importedAtOnce {
			if err := publish(); err != nil {
				return done, err
			}
		}
	}
	if err := publish(); err != nil {
		return done, err
	}
	after, err := a.Stats(context.WithoutCancel(ctx), topic)
	if err != nil {
		return done, err
	}
	done.LeftOut = min(done.Letters, max(0, after.Counters.LeftOut-before.Counters.LeftOut))
	done.Letters -= done.LeftOut
	return done, nil
}

// publisherTo returns a publisher to a topic.
func (a *Admin) publisherTo(topic Stats) (message.Publisher, error) {
	plain := redisdelay.PublisherConfig{Client: a.config.Client, KeyPrefix: a.config.KeyPrefix, Marshaler: a.config.Marshaler}
	if topic.Partitions == nil {
		return redisdelay.NewPublisher(plain, nil)
	}
	return partition.NewPublisher(partition.PublisherConfig{Publisher: plain}, nil)
}

// again returns the message of an exported dead letter. It has a delay ID for an hour, so that a
// repeated import leaves it out.
func again(l Letter) *message.Message {
	msg := message.NewMessage(l.UUID, l.Payload)
	for key, value := range l.Metadata {
		msg.Metadata.Set(key, value)
	}
	redisdelay.SetDelayID(msg, "imported "+l.Group+" "+l.ID, redisdelay.DelayIDKeep)
	redisdelay.SetDelayIDWindow(msg, time.Hour)
	return msg
}

// ReadLetters returns the dead letters of an export, byte for byte as they were. The text may be
// ranged over many times. Errors wrap ErrInvalidArgument and name the line that is no dead letter.
func ReadLetters(text []byte) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		n := 0
		for line := range bytes.Lines(text) {
			if n++; len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			l, err := readLetter(line)
			if err != nil {
				err = fmt.Errorf("%w: line %d is not an exported dead letter: %w", ErrInvalidArgument, n, err)
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

func readLetter(line []byte) (l Letter, err error) {
	if err := jsontext.Read(line, &l); err != nil {
		return l, err
	}
	var uuid struct {
		Plain   *string `json:"uuid"`
		Encoded *string `json:"uuid_base64"`
	}
	if err := json.Unmarshal(line, &uuid); err != nil {
		return l, err
	}
	if l.ID == "" || uuid.Plain == nil && uuid.Encoded == nil {
		return l, errors.New("it has no id or no uuid")
	}
	return l, nil
}
