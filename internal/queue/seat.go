package queue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Seat is the place of the active subscription of a group with SingleActive.
type Seat struct {
	Owner string // the active subscription; "": none is active
	Next  string // the standby that gets the place when the owner gives it up; "": none is known
	Moves bool   // the place is free, and a standby was woken for it
}

// Seats returns the seat of a group in each of several topics. It reads the topics of one master by
// one pipeline. An error means that some could not be read.
func Seats(ctx context.Context, client *Client, prefix, group string, topics []string) ([]Seat, error) {
	places := make([]int, len(topics))
	for i := range places {
		places[i] = i
	}
	keys := func(place int) Keys { return NewKeys(prefix, topics[place]) }
	active := func(place int) string { return keys(place).Active() }
	seats := make([]Seat, len(topics))
	for _, part := range PerNode(ctx, client, places, active) {
		read, err := AskKey(ctx, client, active(part[0]), func(ctx context.Context, c redis.UniversalClient) ([]Seat, error) {
			owners, nexts, workers := make([]*redis.StringCmd, len(part)), make([]*redis.StringSliceCmd, len(part)), make([]*redis.MapStringStringCmd, len(part))
			_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error { // its error may be that a field is missing
				for i, place := range part {
					owners[i] = p.HGet(ctx, active(place), group)
					nexts[i] = p.ZRange(ctx, keys(place).Standby(group), 0, 0)
					workers[i] = p.HGetAll(ctx, keys(place).Workers(group))
				}
				return nil
			})
			read := make([]Seat, len(part))
			for i := range part {
				owner, err := owners[i].Result()
				if err != nil && err != redis.Nil {
					return nil, err
				}
				next, err := nexts[i].Result()
				if err != nil {
					return nil, err
				}
				of, err := workers[i].Result()
				if err != nil {
					return nil, err
				}
				read[i] = seat(owner, next, of)
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

// seat reads an entry of active, the first address of standby, and workers.
func seat(active string, standby []string, workers map[string]string) Seat {
	a := ReadActive(active)
	s := Seat{Owner: a.Subscription, Moves: a.Subscription == "" && !a.Ends.IsZero()}
	for subscription, text := range workers {
		if len(standby) > 0 && ReadWorker(subscription, text).Address == standby[0] {
			s.Next = subscription
		}
	}
	return s
}
