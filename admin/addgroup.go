package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// DefaultTakeoverWindow is the default of GroupSettings.TakeoverWindow.
const DefaultTakeoverWindow = queue.DefaultWindow

// GroupSettings are the settings of a group that AddGroup makes. The zero value is fine. All other
// settings are those of the first subscriber.
type GroupSettings struct {
	// SingleActive is redisdelay.SubscriberConfig.SingleActive. The subscribers of the group must
	// have the same.
	SingleActive bool

	// TakeoverWindow is redisdelay.SubscriberConfig.TakeoverWindow. Default 10s; negative: none.
	TakeoverWindow time.Duration

	// Create has AddGroup make the topic if there is none. Default false: ErrNotFound, because the
	// name may be wrong.
	Create bool
}

// Addition is what AddGroup did.
type Addition struct {
	Group string `json:"group"`

	// Existed tells that the group was there. Then nothing was changed.
	Existed bool `json:"existed"`

	// TakenOver is how many messages the group got that came before it, in the topic's window.
	TakenOver int `json:"taken_over"`

	// Waited is how many messages were due and waited for a first group, which it is.
	Waited int `json:"waited"`
}

// AddGroup makes a consumer group, so that it gets every message of the topic that becomes due from
// now on. Do it before a deployment that takes longer than the window. A group that exists stays as
// it is. In a partitioned topic the group is made in each partition, and counts as existing if it
// was in all. Errors wrap ErrNotFound without GroupSettings.Create, ErrInvalidArgument for a name
// that is too long, or ErrTopicMode.
func (a *Admin) AddGroup(ctx context.Context, topic, group string, settings GroupSettings) (Addition, error) {
	group = groupName(group)
	if len(group) > redisdelay.MaxTopicLength || queue.IsWindow(group) {
		return Addition{}, fmt.Errorf("add group %q: %w: a name has at most %d bytes, and is not of the form window:<digits>", group, ErrInvalidArgument, redisdelay.MaxTopicLength)
	}
	did, err := over(ctx, a, topic, func(plain string) (Addition, error) {
		return a.addGroup(ctx, plain, group, settings, false)
	}, (*Addition).add)
	if errors.Is(err, ErrNotFound) && settings.Create {
		did, err = a.addGroup(ctx, topic, group, settings, true)
	}
	if err != nil {
		return did, fmt.Errorf("add group %q: %w", group, err)
	}
	return did, nil
}

func (a *Addition) add(part Addition) {
	first := a.Group == ""
	a.Existed = part.Existed && (first || a.Existed)
	a.Group = part.Group
	a.TakenOver += part.TakenOver
	a.Waited += part.Waited
}

func (a *Admin) addGroup(ctx context.Context, topic, group string, settings GroupSettings, create bool) (Addition, error) {
	t, err := a.topic(ctx, topic, rights.Adding)
	if err != nil {
		return Addition{}, err
	}
	groups, err := t.Existing(ctx)
	switch {
	case errors.Is(err, ErrNotFound) && create:
	case err != nil:
		return Addition{}, err
	case slices.Contains(groups.Names, group): // to register it would overwrite its subscribers' settings
		return Addition{Group: group, Existed: true}, nil
	}
	got, err := t.Join(ctx, group, queue.GroupOptions{MaxDeliveries: 25, Retention: 30 * 24 * time.Hour, SingleActive: settings.SingleActive,
		Window: max(cmp.Or(settings.TakeoverWindow, queue.DefaultWindow), 0)})
	if err != nil {
		return Addition{}, fmt.Errorf("topic %q: %w", topic, err)
	}
	if _, err := t.Relist(ctx); err != nil { // DeleteTopic may just have removed it from the registry
		return Addition{}, fmt.Errorf("topic %q: %w", topic, err)
	}
	return Addition{Group: group, TakenOver: got.Taken, Waited: got.Waited}, nil
}
