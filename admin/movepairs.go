package admin

import (
	"context"
	"fmt"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// movePair is a plain topic, and the one that its messages go to.
type movePair struct {
	from, to *operate.Topic
	groups   []string // of from
	most     int      // the number of groups of the one that has more
	creates  bool     // to does not exist
	lacks    []string // groups that to needs
	transfer *operate.Transfer
}

// movePairs returns the plain topics that the two consist of.
func (a *Admin) movePairs(ctx context.Context, topic string, m Moving) ([]movePair, error) {
	from, err := a.shapeOf(ctx, topic)
	if err != nil {
		return nil, err
	}
	to, err := a.shapeOf(ctx, m.To)
	if err != nil {
		return nil, err
	}
	there := to.plain || len(to.parts) > 0
	switch {
	case !from.plain && len(from.parts) == 0:
		return nil, fmt.Errorf("topic %q: %w", topic, ErrNotFound)
	case !there && !m.Create:
		return nil, fmt.Errorf("topic %q: %w; Create makes it", m.To, ErrNotFound)
	case from.changing || to.changing:
		return nil, fmt.Errorf("%w: the number of partitions is being changed; finish that first", ErrInvalidArgument)
	case from.plain && !to.plain && there:
		return nil, fmt.Errorf("%w: topic %q has partitions and topic %q has none; name one of the partitions, such as %q", ErrInvalidArgument, m.To, topic, to.parts[0])
	case from.plain:
		return a.pairUp([]string{topic}, []string{m.To})
	case to.plain:
		return nil, fmt.Errorf("%w: topic %q has %d partitions and topic %q has none; move to a topic with %d partitions", ErrInvalidArgument, topic, from.count, m.To, from.count)
	case to.count == 0 && from.set:
		return nil, fmt.Errorf("%w: topic %q has %d partitions, which an operator has set; set as many of topic %q first", ErrInvalidArgument, topic, from.count, m.To)
	case to.count != 0 && to.count != from.count:
		return nil, fmt.Errorf("%w: topic %q has %d partitions and topic %q has %d; give both the same number", ErrInvalidArgument, topic, from.count, m.To, to.count)
	}
	var names []string
	for _, part := range from.parts {
		names = append(names, partitions.Name(m.To, numberOf(part)))
	}
	return a.pairUp(from.parts, names)
}

func (a *Admin) pairUp(from, to []string) (pairs []movePair, err error) {
	for i := range from {
		var p movePair
		if p.from, err = a.handle(from[i]); err == nil {
			p.to, err = a.handle(to[i])
		}
		if err != nil {
			return nil, err
		}
		p.transfer = operate.NewTransfer(p.from, p.to)
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// shape is what plain topics a topic consists of.
type shape struct {
	plain    bool     // the registry lists the name itself
	parts    []string // else its partitions there
	count    int      // of partitions
	set      bool     // an operator has set the count
	changing bool     // the count is being changed
}

func (a *Admin) shapeOf(ctx context.Context, topic string) (s shape, err error) {
	if err := queue.CheckTopic(topic); err != nil {
		return s, fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	listed, err := queue.ListedOf(ctx, a.client, a.config.KeyPrefix, []string{topic})
	if err != nil || len(listed) > 0 {
		return shape{plain: true}, err
	}
	if s.parts, err = a.parts(ctx, topic); err != nil {
		return s, err
	}
	set, err := queue.PartitioningOf(ctx, a.client, a.config.KeyPrefix, topic)
	if err != nil {
		return s, err
	}
	s.count, s.set, s.changing = set.Count, set.Count > 0, set.Before > 0 || set.Next > 0
	if s.count == 0 && len(s.parts) > 0 { // by the programs' configurations
		s.count = numberOf(s.parts[len(s.parts)-1]) + 1
	}
	return s, nil
}
