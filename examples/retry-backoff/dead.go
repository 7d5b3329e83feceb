package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// showDeadLetter prints the dead letter, and how to find it with redis-cli. docs/redis-keys.md
// describes the keys.
func showDeadLetter(ctx context.Context, server *example.Redis) error {
	ofTopic := server.KeyPrefix + ":{" + topic + "}:"
	dead, deliveries, messages := ofTopic+"dead:"+group, ofTopic+"deliveries:"+group, ofTopic+"messages"

	letters, err := server.Client.ZRangeWithScores(ctx, dead, 0, -1).Result()
	if err != nil {
		return err
	}
	if len(letters) != 1 {
		return fmt.Errorf("%d dead letters instead of 1", len(letters))
	}
	id, diedAt := letters[0].Member.(string), time.UnixMilli(int64(letters[0].Score))
	record, err := server.Client.HGet(ctx, deliveries, id).Result()
	if err != nil {
		return fmt.Errorf("read why %s died: %w", id, err)
	}
	body, err := server.Client.HGet(ctx, messages, id).Result()
	if err != nil {
		return fmt.Errorf("read dead letter %s: %w", id, err)
	}

	fmt.Println("\nThe dead letter, which would be kept for DeadRetention:")
	fmt.Printf("> ZRANGE %s 0 -1 WITHSCORES\n%s\n%d (%s)\n", dead, id, diedAt.UnixMilli(), diedAt.Format(time.TimeOnly))
	fmt.Printf("> HGET %s %s\n%s\n", deliveries, id, record)
	fmt.Printf("> HGET %s %s\n%s\n", messages, id, body)
	return nil
}
