package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Plain returns the names of topics, with each partitioned topic replaced by its plain topics, in
// order. A name that is neither in the registry nor of partitions there stays as it is, without an
// error.
func (a *Admin) Plain(ctx context.Context, topics ...string) (plain []string, err error) {
	for _, topic := range topics {
		parts, err := a.parts(ctx, topic)
		if err != nil {
			return nil, fmt.Errorf("plain topics: %w", err)
		}
		if len(parts) == 0 {
			parts = []string{topic}
		}
		plain = append(plain, parts...)
	}
	return plain, nil
}

// parts returns those partitions of a topic that the registry lists, partition 0 first. There are
// none if it lists a plain topic of this name.
func (a *Admin) parts(ctx context.Context, topic string) ([]string, error) {
	if topic == "" || len(topic) > partitions.MaxTopicLength {
		return nil, nil
	}
	plain, err := queue.ListedOf(ctx, a.client, a.config.KeyPrefix, []string{topic})
	if err != nil || len(plain) > 0 {
		return nil, err
	}
	return queue.ListedOf(ctx, a.client, a.config.KeyPrefix, a.names.of(topic))
}

// partNames remembers the names of all partitions that some topics can have. It takes milliseconds
// to find them.
type partNames struct {
	mu    sync.Mutex
	known map[string][]string
}

func (p *partNames) of(topic string) []string {
	p.mu.Lock()
	names := p.known[topic]
	p.mu.Unlock()
	if names != nil {
		return names
	}
	names = partitions.Names(topic, partitions.Max)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) >= 100 {
		p.known = map[string][]string{}
	}
	p.known[topic] = names
	return names
}

// over runs an operation on a topic. If there is no such topic, but there are partitions of it, it
// runs the operation on one partition after the other, and adds up the results. A failure in one
// partition does not keep the others from their turn. ErrNotFound and ErrTooLate count only if no
// partition succeeds.
func over[T any](ctx context.Context, a *Admin, topic string, do func(plain string) (T, error), add func(sum *T, part T)) (sum T, err error) {
	sum, err = do(topic)
	if !errors.Is(err, ErrNotFound) {
		return sum, err
	}
	parts, failed := a.parts(ctx, topic)
	if failed != nil && !errors.Is(failed, ErrForbidden) {
		return sum, failed
	}
	if len(parts) == 0 {
		return sum, err
	}
	var zero T
	var missing, wrong error
	sum = zero
	done := false
	for i, plain := range parts {
		if err := ctx.Err(); err != nil && i > 0 {
			return sum, errors.Join(wrong, fmt.Errorf("after %d of %d partitions: %w", i, len(parts), err))
		}
		part, err := do(plain)
		switch {
		case errors.Is(err, ErrTooLate), errors.Is(err, ErrNotFound) && !errors.Is(missing, ErrTooLate):
			missing = err
			continue
		case errors.Is(err, ErrNotFound):
			continue
		case err != nil:
			wrong = errors.Join(wrong, aboutTopic(plain, err))
		default:
			done = true
		}
		add(&sum, part)
	}
	if wrong == nil && !done {
		wrong = fmt.Errorf("no partition of topic %q: %w", topic, missing)
	}
	return sum, wrong
}

// aboutTopic returns an error that names the topic.
func aboutTopic(topic string, err error) error {
	if strings.Contains(err.Error(), strconv.Quote(topic)) {
		return err
	}
	return fmt.Errorf("topic %q: %w", topic, err)
}

// first keeps the first result.
func first[T comparable](sum *T, part T) { *sum = cmp.Or(*sum, part) }

// appendTo collects the results.
func appendTo[T any](sum *[]T, part []T) { *sum = append(*sum, part...) }

// plus adds up numbers.
func plus(sum *int, part int) { *sum += part }

// Fold puts the Stats of the partitions of each partitioned topic into one, as Stats returns it for
// the name of that topic, where the first of them stood. All others stay as they are, also
// partitions whose name a plain topic has.
func Fold(all []Stats) []Stats {
	plain, of := map[string]bool{}, make([]string, len(all))
	for i, s := range all {
		plain[s.Topic] = true
		if topic, _, ok := partitions.Parse(s.Topic); ok {
			of[i] = topic
		}
	}
	var folded []Stats
	at := map[string]int{} // of each partitioned topic in folded
	for i, s := range all {
		topic := of[i]
		if topic == "" || plain[topic] {
			folded = append(folded, s)
			continue
		}
		place, known := at[topic]
		if !known {
			place = len(folded)
			at[topic], folded = place, append(folded, Stats{Topic: topic})
		}
		parts := &folded[place].Partitions
		if !slices.ContainsFunc(*parts, func(p Stats) bool { return p.Topic == s.Topic }) { // a page may repeat one
			*parts = append(*parts, s)
		}
	}
	for _, place := range at {
		s := &folded[place]
		slices.SortFunc(s.Partitions, func(a, b Stats) int { return cmp.Compare(numberOf(a.Topic), numberOf(b.Topic)) })
		*s = whole(s.Topic, s.Partitions)
	}
	return folded
}

// numberOf returns the number of a partition, which is in its name.
func numberOf(plain string) int {
	_, number, _ := partitions.Parse(plain)
	return number
}

// whole adds up the Stats of the partitions of a topic.
func whole(topic string, parts []Stats) Stats {
	s := Stats{Topic: topic, Partitions: parts}
	unscheduled := false
	var errs []error
	groups := map[string]int{}
	for _, p := range parts {
		if p.Err != nil {
			errs = append(errs, p.Err)
			continue
		}
		s.Now = latest(s.Now, p.Now)
		addUp(&s.Messages, p.Messages)
		addUp(&s.Waiting, p.Waiting)
		addUp(&s.DelayIDs, p.DelayIDs)
		addUp(&s.Counters, p.Counters)
		s.NextDue, s.NextLook = earliest(s.NextDue, p.NextDue), earliest(s.NextLook, p.NextLook)
		s.Scheduled = s.Scheduled || p.Scheduled
		unscheduled = unscheduled || !p.Scheduled && !p.NextLook.IsZero()
		if p.FaultAt.After(s.FaultAt) {
			s.Fault, s.FaultAt = p.Fault, p.FaultAt
		}
		s.Pause = earlier(s.Pause, p.Pause)
		s.Stream, s.Recurs = s.Stream || p.Stream, s.Recurs || p.Recurs
		for _, g := range p.Groups {
			at, known := groups[g.Group]
			if !known {
				groups[g.Group], s.Groups = len(s.Groups), append(s.Groups, g)
				continue
			}
			s.Groups[at].add(g)
		}
	}
	s.Scheduled = s.Scheduled && !unscheduled
	if len(errs) == len(parts) {
		s = Stats{Topic: topic, Err: errs[0], Partitions: parts}
	}
	slices.SortFunc(s.Groups, func(a, b GroupStats) int { return strings.Compare(a.Group, b.Group) })
	return s
}

// add adds the group of another partition.
func (g *GroupStats) add(p GroupStats) {
	addUp(&g.Ready, p.Ready)
	addUp(&g.InHand, p.InHand)
	addUp(&g.Retrying, p.Retrying)
	addUp(&g.Dead, p.Dead)
	addUp(&g.Suspects, p.Suspects)
	addUp(&g.Counters, p.Counters)
	g.Lateness = g.Lateness.Plus(p.Lateness)
	g.OldestDue, g.NextRetry, g.OldestDead = earliest(g.OldestDue, p.OldestDue), earliest(g.NextRetry, p.NextRetry), earliest(g.OldestDead, p.OldestDead)
	g.Subscribed = g.Subscribed && p.Subscribed
	g.SingleActive, g.Epoch = g.SingleActive || p.SingleActive, 0
	if p.Active == "" {
		g.Active = ""
	}
	addUp(&g.Standby, p.Standby)
	g.LastSeen, g.RemovedAt = earliest(g.LastSeen, p.LastSeen), earliest(g.RemovedAt, p.RemovedAt)
	if p.LastSettled.After(g.LastSettled) {
		g.LastSettled = p.LastSettled
	}
	g.Pause = earlier(g.Pause, p.Pause)
	g.Limit.add(p.Limit)
	g.History.add(p.History)
	g.LimitedSince = earliest(g.LimitedSince, p.LimitedSince)
	g.MaxLateness, g.MaxLatenessSince = max(g.MaxLateness, p.MaxLateness), earliest(g.MaxLatenessSince, p.MaxLatenessSince)
}

// addUp adds to each number of a value.
func addUp[T any](sum *T, part T) { addNumbers(reflect.ValueOf(sum).Elem(), reflect.ValueOf(part)) }

func addNumbers(sum, part reflect.Value) {
	switch sum.Kind() {
	case reflect.Struct:
		for i := range sum.NumField() {
			addNumbers(sum.Field(i), part.Field(i))
		}
	case reflect.Array:
		for i := range sum.Len() {
			addNumbers(sum.Index(i), part.Index(i))
		}
	default:
		sum.SetInt(sum.Int() + part.Int())
	}
}

// earliest returns the earlier time. A zero time is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earlier returns the pause that began first.
func earlier(a, b *Pause) *Pause {
	if a == nil || b != nil && b.Since.Before(a.Since) {
		return b
	}
	return a
}

// ofPartition returns the cursor of a page of a partition, and cutCursor reads it.
func ofPartition(plain, cursor string) string { return strconv.Itoa(numberOf(plain)) + "/" + cursor }

func cutCursor(cursor string) (number int, rest string, err error) {
	if cursor == "" {
		return 0, "", nil
	}
	at, rest, ok := strings.Cut(cursor, "/")
	if number, err = strconv.Atoi(at); !ok || err != nil {
		return 0, "", fmt.Errorf("%w: %q is no cursor of a page of a partitioned topic", ErrInvalidArgument, cursor)
	}
	return number, rest, nil
}
