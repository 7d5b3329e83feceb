package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/jsontext"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// A call of Publish takes so many dead letters, or so many bytes of payloads and metadata.
const (
	importedAtOnce = 500
	importedBytes  = 4 << 20
)

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
	LeftOut int // were imported within the last hour already; about, if others publish, too

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
	if before.Stream {
		return done, fmt.Errorf("%w: it has a Redis Stream, which has no groups that could get them", ErrTopicMode)
	}
	count, from := 0, map[string]bool{}
	for l, err := range letters { // all, before anything is published
		if err != nil {
			return done, err
		}
		if err := redisdelay.CheckMetadata(again(l)); err != nil {
			return done, fmt.Errorf("%w: dead letter %q: %w", ErrInvalidArgument, l.ID, err)
		}
		if err := ctx.Err(); err != nil {
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
		return done, fmt.Errorf("%w: groups %s did not export them; EveryGroup has these get them, too", ErrInvalidArgument, texts.Names(done.Others))
	}
	publisher, err := a.publisherTo(before)
	if err != nil {
		return done, err
	}
	defer publisher.Close()
	defer func() { // as the topic counts them, also before an error
		if after, failed := a.Stats(context.WithoutCancel(ctx), topic); failed == nil {
			done.LeftOut = min(done.Letters, max(0, after.Counters.LeftOut-before.Counters.LeftOut))
			done.Letters -= done.LeftOut
		}
	}()
	var chunk []*message.Message
	size := 0
	publish := func() error {
		if err := ctx.Err(); err != nil || len(chunk) == 0 {
			return err
		}
		if err := publisher.Publish(topic, chunk...); err != nil {
			return err
		}
		done.Letters += len(chunk)
		chunk, size = chunk[:0], 0
		if o.Progress != nil {
			o.Progress(Progress{Looked: done.Letters, Done: done.Letters})
		}
		return nil
	}
	for l, err := range letters {
		if err != nil {
			return done, err
		}
		length := len(l.Payload)
		for key, value := range l.Metadata {
			length += len(key) + len(value)
		}
		if len(chunk) == importedAtOnce || size+length > importedBytes {
			if err := publish(); err != nil {
				return done, err
			}
		}
		chunk, size = append(chunk, again(l)), size+length
	}
	err = publish()
	return done, err
}

// publisherTo returns a publisher to a topic.
func (a *Admin) publisherTo(topic Stats) (message.Publisher, error) {
	plain := redisdelay.PublisherConfig{Client: a.config.Client, KeyPrefix: a.config.KeyPrefix, Marshaler: a.config.Marshaler,
		MaxMessageBytes: math.MaxInt32, MaxPublishBytes: math.MaxInt32} // a letter was published before, whatever the limits there
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
	name := "imported " + l.Group + " " + l.ID
	if len(name) > 400 { // a delay ID has at most 512 bytes
		name = fmt.Sprintf("imported %x", sha256.Sum256([]byte(name)))
	}
	redisdelay.SetDelayID(msg, name, redisdelay.DelayIDKeep)
	redisdelay.SetDelayIDWindow(msg, time.Hour)
	return msg
}

// ReadLetters returns the dead letters of an export, byte for byte as they were. The text may be
// ranged over many times. Errors wrap ErrInvalidArgument and name the line that is no dead letter.
func ReadLetters(text []byte) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		n := 0
		for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
			if n++; len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			l, err := readLetter(line)
			if err != nil {
				err = fmt.Errorf("%w: line %d is not an exported dead letter: %s", ErrInvalidArgument, n, texts.Clip(err.Error(), 300))
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
	if l.ID == "" || uuid.Plain == nil && uuid.Encoded == nil || l.Group == "" || l.DiedAt.IsZero() { // a message that waits has no death
		return l, errors.New("it has no id, no uuid, no group or no died_at")
	}
	return l, nil
}
