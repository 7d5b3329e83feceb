package redisdelay

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
)

// mostWarned bounds the memory of warned, because metadata may come from outside.
const mostWarned = 1000

// warned has the metadata keys that warnOfCase has logged in this process, and their number.
var warned struct {
	keys sync.Map
	n    atomic.Int32
}

// warnOfCase logs the metadata keys that differ from a known one only in case, such as "Delay".
// Each is logged once in a process, by the first Publisher that has a logger.
func warnOfCase(logger watermill.LoggerAdapter, topic string, msg *message.Message) {
	for key := range msg.Metadata {
		known := meta.Meant(key)
		if known == "" || logger == (watermill.NopLogger{}) || warned.n.Load() >= mostWarned {
			continue
		}
		if _, before := warned.keys.LoadOrStore(key, true); before {
			continue
		}
		warned.n.Add(1)
		logger.Error("A metadata key is ignored, because it differs from a known one in case",
			fmt.Errorf("the key is %q, want %q", key, known),
			watermill.LogFields{"topic": topic, "message_uuid": msg.UUID})
	}
}
