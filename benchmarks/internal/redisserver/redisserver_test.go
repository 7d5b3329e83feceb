package redisserver

import (
	"context"
	"maps"
	"testing"
)

func TestCommandsAreCountedWithTheirTime(t *testing.T) {
	t.Parallel()
	got, err := parseCommands(map[string]string{
		"cmdstat_evalsha":        "calls=3,usec=120,usec_per_call=40.00,rejected_calls=0,failed_calls=0",
		"cmdstat_client|setinfo": "calls=2,usec=9,usec_per_call=4.50,rejected_calls=0,failed_calls=0",
		"cmdstat_hincrby":        "calls=3,usec=6",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Calls{"evalsha": {3, 120}, "client|setinfo": {2, 9}, "hincrby": {3, 6}}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := parseCommands(map[string]string{"cmdstat_get": "often"}); err == nil {
		t.Error("what is no statistic is no error")
	}
}

func TestAServerThatWasStartedIsItsOwn(t *testing.T) {
	t.Parallel()
	s, err := Start()
	if err != nil {
		t.Skip(err)
	}
	defer s.Stop()
	if err := s.Admin.Set(context.Background(), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	commands, err := s.Commands()
	if err != nil || commands["set"].N != 1 {
		t.Errorf("%v, %v, want one SET", commands, err)
	}
	if memory, err := s.Memory(); err != nil || memory == 0 {
		t.Errorf("Memory: %d, %v", memory, err)
	}
	if cpu, err := s.CPU(); err != nil || cpu < 0 {
		t.Errorf("CPU: %v, %v", cpu, err)
	}
	if _, err := Use(s.Addr); err == nil {
		t.Error("a server with keys is used")
	}
}
