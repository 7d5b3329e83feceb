package texts

import "strings"

// Unsure is the state of a message that a group has ready or is done with, where Redis does not say
// which. UnsureWhy says why.
const (
	Unsure    = "ready or already done"
	UnsureWhy = "Redis counts the groups that still need the message, and does not note which"
)

// Ended says what is known of a message that is not in Redis. Unnamed is that of a delay ID under
// which no message waits.
const (
	Ended   = "it is not in Redis: it was acked, dropped as too late, cancelled, replaced or deleted, or it never was there"
	Unnamed = "no message waits or retries under it; one that is ready, in hand or dead is found by its ID, or by a search"
)

// State returns a state of a message in words. "" is Unsure.
func State(state string) string {
	if state == "" {
		return Unsure
	}
	return strings.ReplaceAll(state, "_", " ")
}
