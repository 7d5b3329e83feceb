// Package periodic publishes messages again and again, by cron specs, intervals and time zones.
package periodic
