package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"
)

// recordSize is the size of a record that a worker appends: number, due time in ms, time of arrival
// in µs, 16 digits each.
const recordSize = 49

// arrivals are what workers have recorded.
type arrivals struct {
	file    *os.File
	rest    []byte // of a record that is not complete yet
	seen    []bool
	late    []time.Duration // one for each message, of its first arrival
	early   int
	twice   int
	first   time.Time // arrival
	last    time.Time // first arrival of a message
	firstAt time.Time // earliest due time
}

func newArrivals(path string, messages int) (*arrivals, error) {
	file, err := os.Create(path)
	return &arrivals{file: file, seen: make([]bool, messages)}, err
}

// read takes in what was appended since the last call.
func (a *arrivals) read() error {
	text, err := io.ReadAll(a.file)
	if err != nil {
		return err
	}
	text = append(a.rest, text...)
	for len(text) >= recordSize {
		if err := a.add(string(text[:recordSize])); err != nil {
			return err
		}
		text = text[recordSize:]
	}
	a.rest = slices.Clone(text)
	return nil
}

func (a *arrivals) add(record string) error {
	number, err := strconv.Atoi(record[:16])
	if err != nil {
		return fmt.Errorf("a worker recorded %q: %w", record, err)
	}
	dueMilli, err := strconv.ParseInt(record[16:32], 10, 64)
	if err != nil {
		return fmt.Errorf("a worker recorded %q: %w", record, err)
	}
	micro, err := strconv.ParseInt(record[32:48], 10, 64)
	if err != nil {
		return fmt.Errorf("a worker recorded %q: %w", record, err)
	}
	if number < 0 || number >= len(a.seen) {
		return fmt.Errorf("message %d arrived, which was not published", number)
	}
	if a.seen[number] {
		a.twice++
		return nil
	}
	a.seen[number] = true
	due, at := time.UnixMilli(dueMilli), time.UnixMicro(micro)
	if len(a.late) == 0 || at.Before(a.first) {
		a.first = at
	}
	if len(a.late) == 0 || due.Before(a.firstAt) {
		a.firstAt = due
	}
	if at.After(a.last) {
		a.last = at
	}
	if at.Before(due) {
		a.early++
	}
	a.late = append(a.late, at.Sub(due))
	return nil
}

func (a *arrivals) missing() int { return len(a.seen) - len(a.late) }

// quantile is how late a share of the messages was at most. It sorts what was recorded.
func (a *arrivals) quantile(q float64) time.Duration {
	if len(a.late) == 0 {
		return 0
	}
	slices.Sort(a.late)
	return a.late[int(q*float64(len(a.late)-1))]
}
