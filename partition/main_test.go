package partition_test

import (
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
