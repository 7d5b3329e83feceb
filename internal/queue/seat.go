package queue

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Seat is the place of the active subscription of a group with SingleActive.
type Seat struct {
	Owner string // the active subscription; "": none is active
	Next  string // the standby that is woken when the owner gives the place up; "": none is known
	Moves bool   // the place is free, and a standby was woken for it
}

// Seats returns the seat of a group in each of several topics. It reads the topics of one master by
// one pipeline. An error means that some could not be read.
func Seats(ctx context.Context, client *servers.Client, prefix, group string, topics []string) ([]Seat, error) {
	places := make([]int, len(topics))
	for i := range places {
		places[i] = i
	}
	keys := func(place int) Keys { return NewKeys(prefix, topics[place]) }
	active := func(place int) string { return keys(place).Active() }
	seats := make([]Seat, len(topics))
	for _, part := range servers.PerNode(ctx, client, places, active) {
		read, err := servers.AskKey(ctx, client, active(part[0]), func(ctx context.Context, c redis.UniversalClient) ([]Seat, error) {
			owners, standbys, workers := make([]*redis.StringCmd, len(part)), make([]*redis.ZSliceCmd, len(part)), make([]*redis.MapStringStringCmd, len(part))
			var now *redis.TimeCmd
			_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error { // its error may be that a field is missing
				now = p.Time(ctx)
				for i, place := range part {
					owners[i] = p.HGet(ctx, active(place), group)
					standbys[i] = p.ZRangeWithScores(ctx, keys(place).Standby(group), 0, -1)
					workers[i] = p.HGetAll(ctx, keys(place).Workers(group))
				}
				return nil
			})
			if err := now.Err(); err != nil {
				return nil, err
			}
			read := make([]Seat, len(part))
			for i := range part {
				owner, err := owners[i].Result()
				if err != nil && err != redis.Nil {
					return nil, err
				}
				standby, err := standbys[i].Result()
				if err != nil {
					return nil, err
				}
				of, err := workers[i].Result()
				if err != nil {
					return nil, err
				}
				read[i] = seat(owner, standby, of, now.Val())
			}
			return read, nil
		})
		if err != nil {
			return nil, err
		}
		for i, place := range part {
			seats[place] = read[i]
		}
	}
	return seats, nil
}

// seat reads an entry of active, the addresses of standby, and workers, which say whose address one
// is. A standby whose time is over is gone, and is not woken.
func seat(active string, standby []redis.Z, workers map[string]string, now time.Time) Seat {
	a := ReadActive(active)
	s := Seat{Owner: a.Subscription, Moves: a.Subscription == "" && !a.Ends.IsZero()}
	valid := slices.IndexFunc(standby, func(z redis.Z) bool { return int64(z.Score) > now.UnixMilli() })
	for subscription, text := range workers {
		if valid >= 0 && ReadWorker(subscription, text).Address == standby[valid].Member {
			s.Next = subscription
		}
	}
	return s
}
