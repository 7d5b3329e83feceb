package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Absent is a message that was taken out of its topic while it waited. Restore brings it back.
type Absent struct {
	ID     string
	Body   []byte
	Own    string    // its options, as Redis has them
	Group  string    // has the retry; "": the message waits for its due time
	Record string    // in Group, as Redis has it; "": none
	At     time.Time // when it is due
	Free   time.Time // when its delay ID is free; zero: it did not have that
}

// Restored is what became of an Absent.
type Restored byte

// These are the letters of the restore script, but for NoGroup.
const (
	CameBack Restored = 'c'
	IsHere   Restored = 'h' // it waits or its Group has it, or it came back before and some group has it ready
	HasEnded Restored = 'e' // it came back before, and has ended since
	Named    Restored = 'n' // another message has its delay ID
	Undone   Restored = 's' // its recurring schedule has gone on without it
	Unclear  Restored = 'b' // some group has it ready, which may be its Group
	NoGroup  Restored = 'g' // the topic lacks its Group
)

const (
	// restoredAtOnce is how many messages Restore takes at most. The script then takes about a
	// millisecond.
	restoredAtOnce = 50

	// RestoredBytes are the bytes of bodies that a call of Restore should have at most.
	RestoredBytes = transferredBytes
)

// RestoreChunk returns how many messages Restore takes at most, for a topic with so many groups.
func RestoreChunk(groups int) int { return min(Chunk(groups), restoredAtOnce) }

// Restore brings messages back, or with dry says what it would do. It takes RestoreChunk of them at
// most, with different IDs. All that can come back do in one step.
func (t *Topic) Restore(ctx context.Context, some []Absent, dry bool) (fates []Restored, err error) {
	limited, end := queue.WhileRemembered(ctx)
	defer end()
	operation := t.Keys().Operation(queue.Token())
	err = t.WithExisting(limited, func(groups *queue.Groups) error {
		fates = make([]Restored, len(some))
		d := t.Draft(&queue.RestoreScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", operation,
			"version", groups.Version, "memory", queue.OperationMemory, "dry", dry)
		var asked []int
		for i, m := range some {
			at := 0
			if m.Group != "" {
				if at = slices.Index(groups.Names, m.Group) + 1; at == 0 {
					fates[i] = NoGroup
					continue
				}
			}
			free := any("")
			if !m.Free.IsZero() {
				free = m.Free.UnixMilli()
			}
			asked = append(asked, i)
			d.Each("message", "id", m.ID, "body", m.Body, "own", m.Own, "due", m.At.UnixMilli(), "free", free, "at", at, "record", m.Record)
		}
		if len(asked) == 0 {
			return nil
		}
		reply, err := ask(limited, t, d.Call())
		if err != nil {
			return err
		}
		verdicts := reply.Text("verdicts")
		if len(verdicts) != len(asked) {
			return fmt.Errorf("restore: unexpected reply %.64q about %d messages", verdicts, len(asked))
		}
		for n, i := range asked {
			fates[i] = Restored(verdicts[n])
		}
		return nil
	})
	return fates, err
}
