package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// ErrMoving means that another Move has one of the two topics. Call Move again when that is over.
var ErrMoving = operate.ErrMoving

// Moving says what Move moves, and where to.
type Moving struct {
	// To is the other topic. Required. It needs the groups in which messages retry or are dead. If
	// all that waits moves, it needs all groups but those of Broadcast. See Create.
	To string

	// Filter chooses messages. The zero value chooses all. A message moves as a whole, also if only
	// one of its Places is chosen.
	Filter Filter

	// States are those of the messages that move: Waiting, Retrying or Dead. Default: all three.
	States []State

	// Create has Move make To if there is none, and the groups that it lacks, with the settings of
	// those of the old topic. Default false: ErrNotFound, which names them.
	Create bool

	DryRun   bool           // count what would move, and change nothing
	Progress func(Progress) // if not nil, called after each step of at most 100 messages
}

// Move moves messages that wait, retry or are dead into another topic, such as one with a new name.
// They keep their IDs, due times, delay IDs with their windows, expiry and other settings, and
// their deliveries and reasons in each group. Messages that are ready or in hand stay.
//
// A message is in one of the two topics at any time, also if the program is killed or the topics
// are on two nodes. Call Move again then: it finds what is in both, and goes on. Without that, at
// most 100 messages are in both, and are delivered in both. Others are up to a minute late. When
// ctx ends, Move finishes its step.
//
// Partitioned topics need the same number of partitions. The retention and MaxDead of the groups in
// the new topic apply to dead letters there.
//
// Errors wrap ErrNotFound if there is no such topic or group, ErrInvalidArgument for a wrong Moving
// or topics that do not fit, ErrTopicMode for a topic with a Redis Stream, or ErrMoving. With an
// error, Moved has what was done before it. A step that takes longer than two seconds may leave a
// copy of a message that stays. An error says so, and names the message: it comes in both topics.
func (a *Admin) Move(ctx context.Context, topic string, m Moving) (Moved, error) {
	moved, err := a.move(ctx, topic, m)
	if err != nil {
		err = fmt.Errorf("move from topic %q to %q: %w", topic, m.To, err)
	}
	return moved, err
}

// movedStates are the states in the order in which Move reads them.
var movedStates = []State{Waiting, Retrying, Dead}

func (a *Admin) move(ctx context.Context, topic string, m Moving) (Moved, error) {
	moved := Moved{To: m.To, Created: []string{}, Stay: []Stay{}}
	for _, state := range m.States {
		if !slices.Contains(movedStates, state) {
			return moved, fmt.Errorf("%w: messages in state %q do not move, want %q, %q or %q", ErrInvalidArgument, state, Waiting, Retrying, Dead)
		}
	}
	if m.To == topic {
		return moved, fmt.Errorf("%w: from a topic to itself", ErrInvalidArgument)
	}
	pairs, err := a.movePairs(ctx, topic, m)
	if err != nil {
		return moved, err
	}
	v := &mover{admin: a, Moving: m, moved: &moved, known: map[string]bool{}}
	for i := range pairs { // before anything moves
		if err := v.prepare(ctx, &pairs[i]); err != nil {
			return moved, err
		}
	}
	for i := range pairs {
		if err := v.make(ctx, &pairs[i]); err != nil {
			return moved, err
		}
	}
	for i := range pairs {
		if err := v.run(ctx, &pairs[i], v.step); err != nil {
			return moved, aboutTopic(pairs[i].from.Name, err)
		}
		stats, err := pairs[i].from.Stats(context.WithoutCancel(ctx))
		if err != nil {
			return moved, err
		}
		for _, g := range stats.Groups {
			moved.Ready, moved.InHand = moved.Ready+g.Number("ready"), moved.InHand+g.Number("in_hand")
		}
	}
	return moved, nil
}

// mover is one Move.
type mover struct {
	Moving
	admin *Admin
	moved *Moved
	done  Progress

	// known are messages with several places that were counted, so that each counts once. It has
	// knownMost at most.
	known map[string]bool
}

const knownMost = 100_000

// isBroadcast tells whether a group is that of a Broadcast subscription, which has no other topic.
func isBroadcast(group string) bool { return strings.HasPrefix(group, "broadcast:") }

// prepare finds what the other topic lacks, and refuses what cannot move.
func (v *mover) prepare(ctx context.Context, p *movePair) error {
	work := rights.Leaving
	if v.DryRun {
		work = rights.Surveying
	}
	if _, err := v.admin.permits.Try(ctx, p.from.Topic, work); err != nil {
		return err
	}
	stats, err := p.from.Stats(ctx)
	if err != nil {
		return err
	}
	groups, err := p.to.Existing(ctx)
	switch {
	case errors.Is(err, ErrNotFound) && v.Create:
		p.creates, groups = true, &queue.Groups{}
	case err != nil:
		return err
	}
	for name, stream := range map[string]bool{p.from.Name: stats.Stream, p.to.Name: groups.Stream} {
		if stream {
			return fmt.Errorf("topic %q: %w: its messages go into a Redis Stream", name, ErrTopicMode)
		}
	}
	if !v.DryRun && !p.creates {
		if _, err := v.admin.permits.Try(ctx, p.to.Topic, rights.Adopting); err != nil {
			return fmt.Errorf("to topic %q: %w", p.to.Name, err)
		}
	}
	whole := v.Filter.isZero() && v.has(Waiting) // a message that waits is for all groups
	p.most = max(len(stats.Groups), len(groups.Names))
	for _, g := range stats.Groups {
		p.groups = append(p.groups, g.Name)
		holds := v.has(Retrying) && g.Number("retrying") > 0 || v.has(Dead) && g.Number("dead") > 0
		if !isBroadcast(g.Name) && !slices.Contains(groups.Names, g.Name) && (whole || holds) {
			p.lacks = append(p.lacks, g.Name)
		}
	}
	if !whole && len(p.lacks) > 0 { // perhaps the Filter chooses no message of these groups
		lacks := map[string]bool{}
		quiet := &mover{Moving: v.Moving, admin: v.admin, moved: &Moved{}, known: map[string]bool{}}
		quiet.Progress = nil
		err := quiet.run(ctx, p, func(ctx context.Context, p *movePair, ids []string) error {
			found, err := operate.Look(ctx, p.from, ids)
			for _, m := range found {
				for _, g := range m.Groups {
					lacks[g] = true
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		p.lacks = slices.DeleteFunc(p.lacks, func(g string) bool { return !lacks[g] })
	}
	if len(p.lacks) > 0 && !v.Create {
		return fmt.Errorf("topic %q lacks group %s: %w; Create makes it", p.to.Name, texts.Names(p.lacks), ErrNotFound)
	}
	for _, g := range p.lacks {
		if !slices.Contains(v.moved.Created, g) {
			v.moved.Created = append(v.moved.Created, g)
		}
	}
	v.moved.NewTopic = v.moved.NewTopic || p.creates
	return nil
}

func (v *mover) has(state State) bool { return len(v.States) == 0 || slices.Contains(v.States, state) }

// make makes what the other topic lacks.
func (v *mover) make(ctx context.Context, p *movePair) error {
	if v.DryRun || !p.creates && len(p.lacks) == 0 {
		return nil
	}
	if _, err := v.admin.permits.Try(ctx, p.to.Topic, rights.Adding); err != nil {
		return fmt.Errorf("to topic %q: %w", p.to.Name, err)
	}
	for _, g := range p.lacks {
		options, err := p.from.OptionsOf(ctx, g)
		if err != nil {
			return err
		}
		options.Window = queue.DefaultWindow
		if _, err := p.to.Join(ctx, g, options); err != nil {
			return fmt.Errorf("group %q of topic %q: %w", g, p.to.Name, err)
		}
	}
	if _, err := p.to.Groups(ctx); err != nil {
		return aboutTopic(p.to.Name, err)
	}
	if _, err := p.to.Relist(ctx); err != nil { // DeleteTopic may just have removed it from the registry
		return aboutTopic(p.to.Name, err)
	}
	_, err := v.admin.permits.Try(ctx, p.to.Topic, rights.Adopting)
	return err
}

// run passes the messages that are chosen to step, some at a time.
func (v *mover) run(ctx context.Context, p *movePair, step func(context.Context, *movePair, []string) error) error {
	bytes := 0
	if v.Filter.needsBodies() {
		bytes = searchedBytes
	}
	for _, state := range movedStates {
		groups := p.groups
		if state == Waiting {
			groups = []string{""}
		}
		if !v.has(state) {
			continue
		}
		for _, group := range groups {
			if err := v.runPlace(ctx, p, state, group, bytes, step); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *mover) runPlace(ctx context.Context, p *movePair, state State, group string, bytes int, step func(context.Context, *movePair, []string) error) error {
	for cursor := ""; ; {
		page, err := p.from.List(ctx, group, string(state), cursor, searchedStep, bytes)
		if errors.Is(err, ErrNotFound) && group != "" {
			return nil // the group is gone
		}
		if err != nil {
			return err
		}
		var ids []string
		for _, l := range page.Messages {
			v.done.Looked++
			if v.Filter.isZero() || v.Filter.Matches(v.admin.listed(p.from.Name, p.from.Name, l)) {
				ids = append(ids, l.ID)
			}
		}
		for some := range slices.Chunk(ids, operate.Chunk(p.most)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := step(ctx, p, some); err != nil {
				return err
			}
			v.tell()
		}
		v.tell()
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

func (v *mover) tell() {
	if v.Progress != nil {
		v.Progress(v.done)
	}
}

// step moves some messages, or looks at them.
func (v *mover) step(ctx context.Context, p *movePair, ids []string) (err error) {
	var done []operate.Transferred
	if v.DryRun {
		done, err = operate.Look(ctx, p.from, ids)
	} else {
		done, err = p.transfer.Move(ctx, ids)
	}
	for _, m := range done {
		v.count(p, m)
	}
	return err
}

// count counts what became of a message.
func (v *mover) count(p *movePair, m operate.Transferred) {
	if m.Outcome == operate.Gone {
		return
	}
	if m.Outcome == operate.Moved && !v.DryRun {
		v.moved.Messages++
		v.done.Done++
		return
	}
	key := p.from.Name + "\x00" + m.ID
	if v.known[key] {
		return
	}
	if len(v.known) < knownMost && len(m.Groups) > 1 {
		v.known[key] = true
	}
	switch m.Outcome {
	case operate.Moved:
		if at := slices.IndexFunc(m.Groups, isBroadcast); at >= 0 {
			v.moved.stays(StayGroup, m.Groups[at])
			return
		}
		v.moved.Messages++
		v.done.Done++
	case operate.Busy:
		v.moved.stays(StayInUse, "")
	case operate.Scheduled:
		name := m.DelayID
		if at := strings.LastIndexByte(name, '@'); at >= 0 {
			name = name[:at]
		}
		v.moved.stays(StayScheduled, name)
	case operate.Clash:
		v.moved.stays(StayDelayID, m.DelayID)
	case operate.Lacking:
		v.moved.stays(StayGroup, m.Lacks)
	case operate.Lingering:
		v.moved.stays(StayLingering, "")
	}
}
