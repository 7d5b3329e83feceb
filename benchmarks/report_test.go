package main

import "testing"

func TestTheREADMEHasTenTargets(t *testing.T) {
	rows := 0
	for _, s := range scenarios(&env{}) {
		if s.targets == nil {
			continue
		}
		for _, target := range s.targets(results{}) {
			if target.short != "" {
				rows++
			}
		}
	}
	if rows != 10 {
		t.Errorf("%d targets have a row in the README, want 10", rows)
	}
}
