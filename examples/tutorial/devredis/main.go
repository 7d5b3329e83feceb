// Devredis is a Redis in memory, to try things on: all is gone when it ends.
package main

import (
	"cmp"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("Redis at", server.Addr())
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt)
	<-end
}
