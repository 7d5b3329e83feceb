// Command lua prints scripts as a server gets them, with the line numbers of the server's errors:
// those that its arguments name, or all.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func main() {
	scripts := queue.Scripts()
	names := os.Args[1:]
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(scripts))
	}
	for _, name := range names {
		source, ok := scripts[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "there is no script %q\n", name)
			os.Exit(1)
		}
		fmt.Println(queue.ScriptSHA(source))
		n := 0
		for line := range strings.Lines(source) {
			n++
			fmt.Printf("%4d  %s", n, line)
		}
		fmt.Println()
	}
}
