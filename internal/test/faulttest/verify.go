package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
)

// Verify drains the world, ends the workers, and fails the test if the history violates a property.
// It returns and logs the figures. It sets Topics and Groups of the rules to the world's.
func (w *World) Verify(rules Rules) Figures {
	w.t.Helper()
	violations, figures := w.Judge(rules)
	for i, v := range violations {
		if i == 30 {
			w.t.Errorf("... and %d more", len(violations)-i)
			break
		}
		w.t.Errorf("%v", v)
	}
	if len(violations) > 0 {
		w.t.Logf("the history stays in %s", w.keepHistory())
	}
	Report(w.t, figures.String())
	return figures
}

// keepHistory writes the history to a file that the test does not remove, and returns its name.
func (w *World) keepHistory() string {
	w.t.Helper()
	file, err := os.CreateTemp("", "faults-*.jsonl")
	require.NoError(w.t, err)
	defer file.Close()
	encode := json.NewEncoder(file)
	for _, e := range w.History() {
		require.NoError(w.t, encode.Encode(e))
	}
	return file.Name()
}

// Judge does the same as Verify, for tests that expect violations.
func (w *World) Judge(rules Rules) ([]Violation, Figures) {
	w.t.Helper()
	rules.Topics, rules.Groups = w.Topics, w.Groups
	w.patient = w.direct.Client(patient)
	defer w.patient.Close()
	w.StopPublishers()
	w.cancelLeftOver(rules.LosesData)
	w.Drain(Pick(time.Minute, 10*time.Minute))
	w.stop(Consumer)
	seen := w.sampler.finish(context.Background())
	w.unwatch()
	for _, p := range w.proxies() {
		w.journal.Write(p.outages()...)
	}
	for _, r := range w.running() {
		if err := r.failed(); err != nil {
			w.t.Errorf("worker %q has failed: %v", r.Name, err)
		}
	}
	w.buryDead()

	history := w.History()
	violations, figures := Check(history, rules)
	figures.Looks = w.sampler.looks
	for _, text := range append(seen, w.sampler.blindness(history)...) {
		violations = append(violations, Violation{OneState, text})
	}
	violations = append(violations, w.leftovers()...)
	return violations, figures
}

// cancelLeftOver cancels the messages that killed publishers had to cancel. If the server loses
// data, it also cancels those whose cancellation was lost.
func (w *World) cancelLeftOver(losesData bool) {
	w.t.Helper()
	left, before, confirmed, began := map[string]Event{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range w.History() {
		confirmed[e.UUID] = confirmed[e.UUID] || e.Kind == Published
		began[e.UUID] = began[e.UUID] || e.Kind == Cancel
		switch {
		case e.Kind == Publish && e.Delay == cancelledDelay.Milliseconds():
			left[e.UUID] = e
		case e.Kind == Cancelled && losesData:
			before[e.UUID] = true
		case e.Kind == Failed, e.Kind == Cancelled, e.Kind == NotThere:
			delete(left, e.UUID)
		}
	}
	operator, err := admin.New(admin.Config{Client: w.patient, KeyPrefix: w.Prefix})
	require.NoError(w.t, err)
	for uuid, e := range left {
		note := Event{Kind: Cancel, Topic: e.Topic, UUID: uuid}
		if !before[uuid] {
			w.Note(note)
		}
		err := operator.Cancel(context.Background(), e.Topic, admin.ByDelayID(uuid))
		if !errors.Is(err, admin.ErrNotFound) {
			require.NoError(w.t, err)
		} else if before[uuid] {
			continue
		}
		if before[uuid] {
			w.Note(note)
		}
		note.Kind = Cancelled
		if err != nil && confirmed[uuid] && !began[uuid] { // the client tries once, except in a Cluster, where nothing is cancelled
			note.Kind = NotThere
		}
		w.Note(note)
	}
}

// buryDead records the dead letters, and removes them.
func (w *World) buryDead() {
	w.t.Helper()
	ctx := context.Background()
	for _, topic := range w.Topics {
		k := queue.NewKeys(w.Prefix, topic)
		for _, group := range w.Groups {
			var ids []string
			dead, err := w.patient.ZRangeWithScores(ctx, k.Dead(group), 0, -1).Result()
			require.NoError(w.t, err)
			for _, z := range dead {
				id := z.Member.(string)
				ids = append(ids, id)
				body, err := w.patient.HGet(ctx, k.Messages(), id).Bytes()
				require.NoError(w.t, err, "the body of dead letter %s", id)
				msg, err := redisdelay.BinaryMarshaler{}.Unmarshal(topic, body)
				uuid, sum := string(body), "" // for a message that cannot be read
				if err == nil {
					uuid, sum = msg.UUID, SumOf(msg)
				}
				record, err := w.patient.HGet(ctx, k.Deliveries(group), id).Result()
				require.NoError(w.t, err, "the record of dead letter %s", id)
				count, _, _ := strings.Cut(record, " ")
				number, err := strconv.Atoi(count)
				require.NoError(w.t, err, "the record of dead letter %s", id)
				w.journal.Write(Event{
					Kind: Dead, Topic: topic, Group: group, ID: id, UUID: uuid, Sum: sum, Redis: int64(z.Score) * 1000, Number: number, Outcome: record,
				})
			}
			for chunk := range slices.Chunk(ids, 1000) {
				require.NoError(w.t, insist(func() error {
					_, err := operate.NewTopic(servers.MustClient(w.patient), w.Prefix, topic).Group(group).Discard(ctx, chunk)
					return err
				}))
			}
		}
	}
}

// insist repeats an idempotent call for a minute while it has no answer, because a busy disk may
// delay the server.
func insist(call func() error) error {
	for began := time.Now(); ; {
		if err := call(); !servers.Unreachable(err) || time.Since(began) > time.Minute {
			return err
		}
	}
}

// leftovers returns the keys that a drained world must not have.
func (w *World) leftovers() (found []Violation) {
	r := &recorder{TB: w.t}
	queuetest.CheckDrained(r, w.patient, w.Prefix, queuetest.Live()) // killed workers leave keys
	for _, text := range r.said {
		found = append(found, Violation{Clean, text})
	}
	return found
}

// recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
