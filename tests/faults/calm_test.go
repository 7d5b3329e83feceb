package faults

import (
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestNothingFails(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "the workload of the other tests is right, and the checker finds nothing wrong where nothing is")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()), func(w *faulttest.World) { w.Groups, w.Topics = []string{"g", "h"}, []string{"t", "u"} })
	w.Start(
		faulttest.Worker{Role: faulttest.Consumer, Name: "consumer-1", InFlight: 5, WorkMS: 3, MaxDeliveries: 4},
		faulttest.Worker{Role: faulttest.Consumer, Name: "consumer-2", InFlight: 5, WorkMS: 3, MaxDeliveries: 4},
		faulttest.Worker{Role: faulttest.Consumer, Name: "consumer-3", Group: "h", InFlight: 5, MaxDeliveries: 4},
	)
	publishers := w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: 400, Batch: 3, Callers: 3, PauseMS: 5, CancelEvery: 50,
		DelaysMS: []int{0, 20, 300}, Do: []string{faulttest.Ack, faulttest.Ack, faulttest.Ack, faulttest.Nack(1, 50*time.Millisecond), faulttest.Nack(2, 0), faulttest.Nack(9, 10*time.Millisecond)},
	})
	w.Await(publishers...)
	w.Verify(faulttest.Rules{MaxDeliveries: 4, Return: time.Second})
}
