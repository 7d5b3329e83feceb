//go:build stress

package admin_test

func init() { raced = 10_000 }
