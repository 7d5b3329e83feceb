//go:build stress

package admin_test

func init() { raced, manyGroups = 10_000, 5000 }
