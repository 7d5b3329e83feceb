package meta

import (
	"context"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// delayNow is the publisher's clock in the tables; it lies within a second, where cutting to whole
// seconds shows.
var delayNow = time.Date(2026, 3, 4, 12, 0, 0, int(400*time.Millisecond), time.UTC)

// parts returns what a due time is made of: a while, or Unix milliseconds.
func parts(d queue.Due) (in time.Duration, at int64) {
	fields := reflect.ValueOf(d)
	return time.Duration(fields.FieldByName("in").Int()), fields.FieldByName("at").Int()
}

func delayMessage(metadata message.Metadata) *message.Message {
	msg := message.NewMessage("", nil)
	msg.Metadata = metadata
	return msg
}

func TestDue(t *testing.T) {
	const (
		until = delay.DelayedUntilKey
		for_  = delay.DelayedForKey
	)
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	cases := map[string]struct {
		metadata message.Metadata
		want     queue.Due
	}{
		"no metadata": {nil, queue.Due{}},
		"other keys":  {message.Metadata{"Delay": "1h", "name": "x"}, queue.Due{}},

		"delay":                        {message.Metadata{DelayKey: "15m"}, queue.In(15 * time.Minute)},
		"delay of milliseconds":        {message.Metadata{DelayKey: "250ms"}, queue.In(250 * time.Millisecond)},
		"delay of several units":       {message.Metadata{DelayKey: "+1h2m3.5s"}, queue.In(3723500 * time.Millisecond)},
		"delay of a nanosecond":        {message.Metadata{DelayKey: "1ns"}, queue.In(time.Millisecond)},
		"delay just above 1 ms":        {message.Metadata{DelayKey: "1.000001ms"}, queue.In(2 * time.Millisecond)},
		"delay just below 2 ms":        {message.Metadata{DelayKey: "1999µs"}, queue.In(2 * time.Millisecond)},
		"delay zero":                   {message.Metadata{DelayKey: "0s"}, queue.Due{}},
		"delay zero without unit":      {message.Metadata{DelayKey: "0"}, queue.Due{}},
		"delay minus zero":             {message.Metadata{DelayKey: "-0s"}, queue.Due{}},
		"delay of MaxDelay":            {message.Metadata{DelayKey: "876000h"}, queue.In(MaxDelay)},
		"delay over Watermill's":       {message.Metadata{DelayKey: "1s", until: "bad", for_: "bad"}, queue.In(time.Second)},
		"zero delay over Watermill's":  {message.Metadata{DelayKey: "0s", until: "2026-03-04T13:00:00Z"}, queue.Due{}},
		"delay_until over Watermill's": {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00Z", until: "bad"}, queue.At(noon)},

		"delay_until":                       {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00Z"}, queue.At(noon)},
		"delay_until with offset":           {message.Metadata{DelayUntilKey: "2026-03-04T14:30:00+02:30"}, queue.At(noon)},
		"delay_until with milliseconds":     {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00.123Z"}, queue.At(noon.Add(123 * time.Millisecond))},
		"delay_until of a nanosecond":       {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00.000000001Z"}, queue.At(noon.Add(time.Millisecond))},
		"delay_until just below the second": {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00.999000001Z"}, queue.At(noon.Add(time.Second))},
		"delay_until in the past":           {message.Metadata{DelayUntilKey: "2000-01-01T00:00:00Z"}, queue.At(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))},
		"delay_until 100 years ahead":       {message.Metadata{DelayUntilKey: "2126-02-08T12:00:00.4Z"}, queue.At(delayNow.Add(MaxDelay))},

		"Watermill's pair, fresh":             {message.Metadata{until: "2026-03-04T12:01:00Z", for_: "1m0s"}, queue.In(time.Minute)},
		"Watermill's pair, sub-second":        {message.Metadata{until: "2026-03-04T12:00:00Z", for_: "500ms"}, queue.In(500 * time.Millisecond)},
		"Watermill's pair, rounded up":        {message.Metadata{until: "2026-03-04T12:00:00Z", for_: "500.000001ms"}, queue.In(501 * time.Millisecond)},
		"Watermill's pair from an outbox":     {message.Metadata{until: "2026-03-04T12:01:00Z", for_: "1h0m0s"}, queue.In(60600 * time.Millisecond)},
		"Watermill's pair, outbox, overdue":   {message.Metadata{until: "2026-03-04T11:00:00Z", for_: "1h0m0s"}, queue.Due{}},
		"Watermill's pair, for too short":     {message.Metadata{until: "2026-03-04T13:00:00Z", for_: "1s"}, queue.In(time.Hour - 400*time.Millisecond)},
		"Watermill's pair, for negative":      {message.Metadata{until: "2026-03-04T11:00:00Z", for_: "-1h0m0s"}, queue.Due{}},
		"Watermill's pair, until 1 s ago":     {message.Metadata{until: "2026-03-04T11:59:59Z", for_: "1h"}, queue.Due{}},
		"Watermill's pair, zero value":        {message.Metadata{until: "0001-01-01T00:00:00Z", for_: "0s"}, queue.Due{}},
		"Watermill's pair, longest durations": {message.Metadata{until: "2026-03-04T12:01:00Z", for_: time.Duration(math.MaxInt64).String()}, queue.In(60600 * time.Millisecond)},
		"Watermill's pair, clock not set":     {message.Metadata{until: "1970-01-01T00:01:00Z", for_: "1m0s"}, queue.Due{}},
		"Watermill's pair, 100 years":         {message.Metadata{until: "2126-02-08T12:00:00Z", for_: "900000h0m0s"}, queue.In(MaxDelay)},

		"Watermill's until alone": {message.Metadata{until: "2026-03-04T12:00:00Z"}, queue.At(noon)},
		"Watermill's for alone":   {message.Metadata{for_: "1h"}, queue.Due{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			msg := delayMessage(c.metadata)
			before := msg.Copy()
			got, err := Due(msg, delayNow)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.True(t, msg.Equals(before), "the message was changed")
		})
	}
}

func TestDueRefusesAWrongValue(t *testing.T) {
	const (
		until = delay.DelayedUntilKey
		for_  = delay.DelayedForKey
	)
	long := strings.Repeat("0", maxValueLen)
	cases := map[string]struct {
		metadata message.Metadata
		want     []string // all are in the error
	}{
		"two keys":                         {message.Metadata{DelayKey: "1s", DelayUntilKey: "2026-03-04T12:00:00Z"}, []string{`delay is "1s"`, `delay_until is "2026-03-04T12:00:00Z"`, "one of them"}},
		"two keys, both empty":             {message.Metadata{DelayKey: "", DelayUntilKey: ""}, []string{`delay is ""`, `delay_until is ""`}},
		"delay empty":                      {message.Metadata{DelayKey: ""}, []string{`delay is ""`, `"15m"`}},
		"delay without unit":               {message.Metadata{DelayKey: "15"}, []string{`delay is "15"`}},
		"delay with a space":               {message.Metadata{DelayKey: "15 m"}, []string{`delay is "15 m"`}},
		"delay in days":                    {message.Metadata{DelayKey: "1d"}, []string{`delay is "1d"`}},
		"delay negative":                   {message.Metadata{DelayKey: "-1ns"}, []string{`delay is "-1ns"`}},
		"delay above MaxDelay":             {message.Metadata{DelayKey: "876000h0m0.000000001s"}, []string{`delay is "876000h0m0.000000001s"`, "100 years"}},
		"delay above a Duration":           {message.Metadata{DelayKey: "9999999h"}, []string{`delay is "9999999h"`}},
		"delay binary":                     {message.Metadata{DelayKey: "\x00\xff\n"}, []string{`delay is "\x00\xff\n"`}},
		"delay valid but too long":         {message.Metadata{DelayKey: long + "1s"}, []string{`delay is "` + long + `"...`}},
		"delay_until of the zero time":     {message.Metadata{DelayUntilKey: time.Time{}.Format(time.RFC3339Nano)}, []string{`delay_until is "0001-01-01T00:00:00Z"`, "from the year 2000"}},
		"delay_until of Unix time zero":    {message.Metadata{DelayUntilKey: "1970-01-01T00:00:00Z"}, []string{`delay_until is "1970-01-01T00:00:00Z"`}},
		"delay_until just before 2000":     {message.Metadata{DelayUntilKey: "1999-12-31T23:59:59.999999999Z"}, []string{"delay_until is", "from the year 2000"}},
		"Watermill's until before 2000":    {message.Metadata{until: "1999-12-31T23:59:59Z"}, []string{until + ` is "1999-12-31T23:59:59Z"`, "from the year 2000"}},
		"Watermill's Until(zero)":          {message.Metadata{until: "0001-01-01T00:00:00Z", for_: time.Duration(math.MinInt64).String()}, []string{until + ` is "0001-01-01T00:00:00Z"`}},
		"Watermill's Until(Unix zero)":     {message.Metadata{until: "1970-01-01T00:00:00Z", for_: "-492444h0m0s"}, []string{until + ` is "1970-01-01T00:00:00Z"`}},
		"delay_until empty":                {message.Metadata{DelayUntilKey: ""}, []string{`delay_until is ""`, "RFC 3339"}},
		"delay_until without zone":         {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00"}, []string{`delay_until is "2026-03-04T12:00:00"`}},
		"delay_until lower-case":           {message.Metadata{DelayUntilKey: "2026-03-04t12:00:00z"}, []string{"delay_until is"}},
		"delay_until with space":           {message.Metadata{DelayUntilKey: "2026-03-04 12:00:00Z"}, []string{"delay_until is"}},
		"delay_until no such day":          {message.Metadata{DelayUntilKey: "2026-02-29T12:00:00Z"}, []string{"delay_until is"}},
		"delay_until in Unix time":         {message.Metadata{DelayUntilKey: "1772625600"}, []string{`delay_until is "1772625600"`}},
		"delay_until too far":              {message.Metadata{DelayUntilKey: "2126-02-08T12:00:00.400000001Z"}, []string{"delay_until is", "100 years"}},
		"delay_until year 9999":            {message.Metadata{DelayUntilKey: "9999-12-31T23:59:59Z"}, []string{"delay_until is"}},
		"delay_until too long":             {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00." + long + "Z"}, []string{`delay_until is "2026-03-04T12:00:00.000`, `"...`}},
		"Watermill's until empty":          {message.Metadata{until: "", for_: "1s"}, []string{until + ` is ""`}},
		"Watermill's until bad":            {message.Metadata{until: "soon", for_: "1s"}, []string{until + ` is "soon"`}},
		"Watermill's until too far":        {message.Metadata{until: "2300-01-01T00:00:00Z", for_: "1s"}, []string{until + " is", "100 years"}},
		"Watermill's until alone, too far": {message.Metadata{until: "2300-01-01T00:00:00Z"}, []string{until + " is", "100 years"}},
		"Watermill's for empty":            {message.Metadata{until: "2026-03-04T12:00:00Z", for_: ""}, []string{for_ + ` is ""`}},
		"Watermill's for bad":              {message.Metadata{until: "2026-03-04T12:00:00Z", for_: "1"}, []string{for_ + ` is "1"`}},
		"Watermill's for too long":         {message.Metadata{until: "2026-03-04T12:00:00Z", for_: long + "1s"}, []string{for_ + ` is "` + long + `"...`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Due(delayMessage(c.metadata), delayNow)
			require.ErrorIs(t, err, ErrInvalidDelay)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.Less(t, len(err.Error()), 400)
			require.Zero(t, got)
		})
	}
}

// Watermill's own functions, on a clock that starts within a second and moves only when told to.
func TestDueWithWatermillsDelay(t *testing.T) {
	type stamp func(*message.Message, delay.Delay)
	stamps := map[string]stamp{
		"metadata": delay.Message,
		"context": func(msg *message.Message, d delay.Delay) {
			type otherKey struct{}
			ctx := delay.WithContext(context.Background(), d)
			msg.SetContext(context.WithValue(ctx, otherKey{}, 1))
		},
	}
	cases := map[string]struct {
		delay   func() delay.Delay
		waited  time.Duration // between the stamp and publishing
		atLeast time.Duration
		atMost  time.Duration
	}{
		"fresh, 500 ms":                {func() delay.Delay { return delay.For(500 * time.Millisecond) }, 0, 500 * time.Millisecond, 500 * time.Millisecond},
		"fresh, an hour":               {func() delay.Delay { return delay.For(time.Hour) }, 0, time.Hour, time.Hour},
		"fresh, until":                 {func() delay.Delay { return delay.Until(time.Now().Add(1234 * time.Millisecond)) }, 0, 1234 * time.Millisecond, 1234 * time.Millisecond},
		"fresh, until in another zone": {func() delay.Delay { return delay.Until(time.Now().In(time.FixedZone("", -9000)).Add(time.Hour)) }, 0, time.Hour, time.Hour},
		"half a minute in an outbox":   {func() delay.Delay { return delay.For(time.Minute) }, 30 * time.Second, 30 * time.Second, 31 * time.Second},
		"a day in an outbox":           {func() delay.Delay { return delay.For(time.Minute) }, 24 * time.Hour, 0, 0},
		"overdue within the second":    {func() delay.Delay { return delay.For(10 * time.Millisecond) }, 20 * time.Millisecond, 0, 10 * time.Millisecond},
		"zero":                         {func() delay.Delay { return delay.Delay{} }, 0, 0, 0},
		"for zero":                     {func() delay.Delay { return delay.For(0) }, 0, 0, 0},
		"for negative":                 {func() delay.Delay { return delay.For(-time.Hour) }, 0, 0, 0},
		"until past":                   {func() delay.Delay { return delay.Until(time.Now().Add(-time.Hour)) }, 0, 0, 0},
		"until now":                    {func() delay.Delay { return delay.Until(time.Now()) }, 0, 0, 0},
	}
	for where, stamp := range stamps {
		for name, c := range cases {
			t.Run(where+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(678 * time.Millisecond)
					msg := message.NewMessage("", nil)
					stamp(msg, c.delay())
					before := msg.Copy()
					time.Sleep(c.waited)

					got, err := Due(msg, time.Now())
					require.NoError(t, err)
					in, at := parts(got)
					require.Zero(t, at)
					require.GreaterOrEqual(t, in, c.atLeast, "early")
					require.LessOrEqual(t, in, c.atMost, "late")
					require.True(t, msg.Equals(before), "the message was changed")
				})
			})
		}
	}
}

// Watermill has no error for an instant that was never set.
func TestDueRefusesWatermillsDelayUntilNever(t *testing.T) {
	for _, never := range []time.Time{{}, time.Unix(0, 0)} {
		synctest.Test(t, func(t *testing.T) {
			msg := message.NewMessage("", nil)
			msg.SetContext(delay.WithContext(context.Background(), delay.Until(never)))
			_, err := Due(msg, time.Now())
			require.ErrorIs(t, err, ErrInvalidDelay)
			delay.Message(msg, delay.Until(never))
			_, err = Due(msg, time.Now())
			require.ErrorIs(t, err, ErrInvalidDelay)
		})
	}
}

func TestMetadataComesBeforeTheContext(t *testing.T) {
	cases := map[string]struct {
		metadata message.Metadata
		want     queue.Due
	}{
		"none":                    {nil, queue.In(time.Hour)},
		"delay":                   {message.Metadata{DelayKey: "0s"}, queue.Due{}},
		"delay_until":             {message.Metadata{DelayUntilKey: "2026-03-04T12:00:00Z"}, queue.At(time.UnixMilli(1772625600000))},
		"Watermill's until":       {message.Metadata{delay.DelayedUntilKey: "2026-03-04T12:00:00Z"}, queue.At(time.UnixMilli(1772625600000))},
		"Watermill's pair":        {message.Metadata{delay.DelayedUntilKey: "1999-01-01T00:00:00Z", delay.DelayedForKey: "1s"}, queue.Due{}},
		"Watermill's for is none": {message.Metadata{delay.DelayedForKey: "1s"}, queue.In(time.Hour)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				msg := delayMessage(c.metadata)
				msg.SetContext(delay.WithContext(context.Background(), delay.For(time.Hour)))
				got, err := Due(msg, time.Now())
				require.NoError(t, err)
				require.Equal(t, c.want, got)
			})
		})
	}
}

func TestADelayInTheContextIsCheckedToo(t *testing.T) {
	for name, d := range map[string]delay.Delay{
		"too far":    delay.For(200 * 365 * 24 * time.Hour),
		"year 10000": delay.Until(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)),
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("", nil)
			msg.SetContext(delay.WithContext(context.Background(), d))
			_, err := Due(msg, time.Now())
			require.ErrorIs(t, err, ErrInvalidDelay)
			require.ErrorContains(t, err, delay.DelayedUntilKey)
		})
	}
}

func TestAContextWithoutDelayIsNoDelay(t *testing.T) {
	type otherKey struct{}
	msg := message.NewMessage("", nil)
	msg.SetContext(context.WithValue(context.Background(), otherKey{}, "1h"))
	got, err := Due(msg, delayNow)
	require.NoError(t, err)
	require.Zero(t, got)
}

// A message stamped by the publisher's clock and published waited later is due when it was meant to
// be: never early, and never more than Watermill's cut second late.
func TestWatermillsPairIsNeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "for"))
		waited := time.Duration(rapid.OneOf(
			rapid.Int64Range(0, int64(3*time.Second)), rapid.Int64Range(0, int64(48*time.Hour)),
		).Draw(t, "waited"))
		stamped := delayNow.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "stamped")))
		msg := delayMessage(message.Metadata{
			delay.DelayedUntilKey: stamped.Add(duration).Format(time.RFC3339),
			delay.DelayedForKey:   duration.String(),
		})

		got, err := Due(msg, stamped.Add(waited))
		require.NoError(t, err)
		in, at := parts(got)
		require.Zero(t, at)
		require.Zero(t, in%time.Millisecond)

		left := max(duration-waited, 0)
		require.GreaterOrEqual(t, in, left, "early")
		late := in - left
		if waited == 0 {
			require.Less(t, late, time.Millisecond, "a fresh message is exact")
		} else {
			require.Less(t, late, time.Second+time.Millisecond)
			require.LessOrEqual(t, late, waited+time.Millisecond, "later than the time waited")
		}
	})
}

func TestRetry(t *testing.T) {
	const (
		until = delay.DelayedUntilKey
		for_  = delay.DelayedForKey
	)
	in2100 := queue.At(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	cases := map[string]struct {
		metadata message.Metadata
		want     queue.Due
		set      bool
	}{
		"nothing":                      {nil, queue.Due{}, false},
		"Watermill's for alone":        {message.Metadata{for_: "1h"}, queue.Due{}, false},
		"delay":                        {message.Metadata{DelayKey: "1.5ms"}, queue.In(2 * time.Millisecond), true},
		"delay zero":                   {message.Metadata{DelayKey: "0s"}, queue.Due{}, true},
		"delay beside Watermill's for": {message.Metadata{DelayKey: "1s", for_: "1h"}, queue.In(time.Second), true},
		"delay_until":                  {message.Metadata{DelayUntilKey: "2100-01-01T00:00:00Z"}, in2100, true},
		"Watermill's pair":             {message.Metadata{until: "2026-03-04T12:00:01Z", for_: "1s"}, queue.In(time.Second), true},
		"Watermill's until alone":      {message.Metadata{until: "2100-01-01T00:00:00Z"}, in2100, true},
		"Watermill's until past":       {message.Metadata{until: "2026-03-04T11:00:00Z", for_: "-1h"}, queue.Due{}, true},
		"delay over Watermill's pair":  {message.Metadata{until: "2026-03-04T12:00:01Z", for_: "1s", DelayKey: "1h"}, queue.In(time.Hour), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, set, err := Retry(c.metadata, delayNow)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.set, set)
		})
	}

	malformed := map[string]message.Metadata{
		DelayKey:      {DelayKey: "soon"},
		DelayUntilKey: {DelayUntilKey: "soon"},
		until:         {until: "soon"},
		for_:          {until: "2026-03-04T12:00:01Z", for_: "soon"},
		"one of them": {DelayKey: "1s", DelayUntilKey: "2100-01-01T00:00:00Z"},
	}
	for want, metadata := range malformed {
		t.Run("malformed "+want, func(t *testing.T) {
			got, set, err := Retry(metadata, delayNow)
			require.ErrorIs(t, err, ErrInvalidDelay)
			require.ErrorContains(t, err, want)
			require.True(t, set)
			require.Zero(t, got)
		})
	}
}

// A delivery, a failing handler under DelayOnError, and a nack, twice round.
func TestDelayOnErrorGrowsFromItsInitialInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(987 * time.Millisecond)
		onError := middleware.DelayOnError{InitialInterval: 300 * time.Millisecond, MaxInterval: time.Minute, Multiplier: 2}
		fail := onError.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, context.Canceled })

		msg := message.NewMessage("", nil)
		delay.Message(msg, delay.For(24*time.Hour))
		passedOn := false
		for _, want := range []time.Duration{300, 600, 1200} {
			msg.Metadata = Without(msg.Metadata, NotStored(false, passedOn))
			_, err := fail(msg)
			require.Error(t, err)
			got, set, err := Retry(msg.Metadata, time.Now())
			require.NoError(t, err)
			require.True(t, set)
			require.Equal(t, queue.In(want*time.Millisecond), got)
			passedOn = true
		}
	})
}

func TestDelayingKeysAreStripped(t *testing.T) {
	all := message.Metadata{
		DelayKey: "1s", DelayUntilKey: "x", delay.DelayedUntilKey: "y", delay.DelayedForKey: "z", MaxDeliveriesKey: "3", "name": "n",
	}
	before := delayMessage(all).Copy().Metadata

	require.Equal(t, message.Metadata{MaxDeliveriesKey: "3", "name": "n"}, Without(all, NotStored(false, false)))
	require.Equal(t, message.Metadata{MaxDeliveriesKey: "3", "name": "n", delay.DelayedForKey: "z"}, Without(all, NotStored(false, true)))
	require.Equal(t, before, all, "the input was changed")

	for key := range all {
		if key == MaxDeliveriesKey || key == "name" {
			continue
		}
		require.Empty(t, Without(message.Metadata{key: ""}, NotStored(false, false)), "%s without a value", key)
	}
}

func TestMetadataIsNotCopiedInVain(t *testing.T) {
	require.Nil(t, Without(nil, NotStored(false, false)))
	for _, passedOn := range []bool{false, true} {
		metadata := message.Metadata{"name": "n"}
		if passedOn {
			metadata[delay.DelayedForKey] = "1s"
		}
		got := Without(metadata, NotStored(false, passedOn))
		got["added"] = "to the same map"
		require.Contains(t, metadata, "added")
	}
}

func TestMaxDeliveries(t *testing.T) {
	for value, want := range map[string]int{
		"1": 1, "25": 25, "+3": 3, "007": 7, "2147483647": math.MaxInt32, "-1": -1, "-25": -1, "-2147483648": -1,
	} {
		n, err := readLimit(message.Metadata{MaxDeliveriesKey: value})
		require.NoError(t, err, value)
		require.Equal(t, want, n, value)
	}

	n, err := readLimit(message.Metadata{"MAX_DELIVERIES": "0"})
	require.NoError(t, err)
	require.Zero(t, n)

	for _, value := range []string{
		"", "0", "-0", "1.5", "1e3", "0x10", "1_000", " 1", "many", "2147483648", "-2147483649", strings.Repeat("0", maxValueLen) + "1",
	} {
		n, err := readLimit(message.Metadata{MaxDeliveriesKey: value})
		require.ErrorIs(t, err, ErrInvalidMetadata, value)
		require.NotErrorIs(t, err, ErrInvalidDelay)
		require.ErrorContains(t, err, "max_deliveries is "+quoteClipped(value))
		require.Zero(t, n)
	}
}

func FuzzDue(f *testing.F) {
	// An empty text with has cleared means that the key is not there.
	const all = 0b1111
	f.Add(uint8(0), "", "", "", "")
	f.Add(uint8(all), "", "", "", "")
	f.Add(uint8(1), "15m", "", "", "")
	f.Add(uint8(1), "-1ns", "", "", "")
	f.Add(uint8(1), "876000h0m0.000000001s", "", "", "")
	f.Add(uint8(2), "", "2026-03-04T12:00:00.0001Z", "", "")
	f.Add(uint8(2), "", "9999-12-31T23:59:59Z", "", "")
	f.Add(uint8(4), "", "", "2026-03-04T12:00:00Z", "")
	f.Add(uint8(8), "", "", "", "1s")
	f.Add(uint8(12), "", "", "2026-03-04T12:00:01Z", "1s")
	f.Add(uint8(12), "", "", "0001-01-01T00:00:00Z", "-2562047h47m16.854775808s")
	f.Add(uint8(3), "1s", strings.Repeat("\x00", 100), "", "")

	keys := []string{DelayKey, DelayUntilKey, delay.DelayedUntilKey, delay.DelayedForKey}
	f.Fuzz(func(t *testing.T, has uint8, own, ownUntil, wmUntil, wmFor string) {
		metadata := message.Metadata{}
		for i, value := range []string{own, ownUntil, wmUntil, wmFor} {
			if has&(1<<i) != 0 {
				metadata[keys[i]] = value
			}
		}
		got, err := Due(delayMessage(metadata), delayNow)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidDelay)
			require.Zero(t, got)
			require.Less(t, len(err.Error()), 2000)
			named := 0
			for key, value := range metadata {
				if strings.Contains(err.Error(), "metadata "+key+" is "+quoteClipped(value)) {
					named++
				}
			}
			require.Equal(t, 1, named, "the error does not name key and value: %v", err)
		}
		requireSoundDue(t, got)

		retry, set, retryErr := Retry(metadata, delayNow)
		requireSoundDue(t, retry)
		require.Equal(t, has&0b111 != 0, set)
		if retryErr != nil {
			require.ErrorIs(t, retryErr, ErrInvalidDelay)
		}

		left := Without(metadata, NotStored(false, true))
		require.Equal(t, has&8 != 0, len(left) == 1)
		require.Empty(t, Without(metadata, NotStored(false, false)))
	})
}

func requireSoundDue(t *testing.T, d queue.Due) {
	t.Helper()
	in, at := parts(d)
	require.GreaterOrEqual(t, in, time.Duration(0))
	require.LessOrEqual(t, in, MaxDelay)
	require.Zero(t, in%time.Millisecond)
	require.GreaterOrEqual(t, at, int64(0))
	if at != 0 {
		require.Zero(t, in)
		require.LessOrEqual(t, at, delayNow.Add(MaxDelay).UnixMilli())
	}
}

func BenchmarkDue(b *testing.B) {
	type otherKey struct{}
	withContext := message.NewMessage("", nil)
	withContext.SetContext(context.WithValue(context.Background(), otherKey{}, 1))
	delayedByContext := message.NewMessage("", nil)
	delayedByContext.SetContext(delay.WithContext(context.Background(), delay.For(time.Hour)))
	delayedByWatermill := message.NewMessage("", nil)
	delay.Message(delayedByWatermill, delay.For(time.Hour))

	for name, msg := range map[string]*message.Message{
		"none":             delayMessage(message.Metadata{"name": "order.placed"}),
		"delay":            delayMessage(message.Metadata{"name": "order.placed", DelayKey: "15m"}),
		"delay_until":      delayMessage(message.Metadata{DelayUntilKey: "2026-03-04T12:00:00Z"}),
		"watermill":        delayedByWatermill,
		"context":          delayedByContext,
		"context_no_delay": withContext,
	} {
		b.Run(name, func(b *testing.B) {
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Due(msg, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
