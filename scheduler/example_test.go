package scheduler_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// A scheduler alone, for all topics under the key prefix. Subscribers run one of their own for their
// topics, so this is for programs whose subscribers come and go.
func Example() {
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	s, err := scheduler.New(scheduler.Config{Client: client}, nil)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }() // the goroutine is yours, as is its end

	stop()
	fmt.Println(<-ended)

	// Output: <nil>
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
