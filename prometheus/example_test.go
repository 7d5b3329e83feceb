package promredisdelay_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/admin"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The code of it is also in docs/telemetry.md.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	operator, err := admin.New(admin.Config{Client: client})
	check(err)

	collector, err := promredisdelay.New(promredisdelay.Config{Admin: operator, Client: client})
	check(err)
	prometheus.MustRegister(collector)

	fmt.Println("registered:", prometheus.Unregister(collector))
	// Output: registered: true
}
