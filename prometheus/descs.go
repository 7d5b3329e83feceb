package promredisdelay

import "github.com/prometheus/client_golang/prometheus"

// described are all metrics.
var described []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("redisdelay_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	descUp      = desc("up", "1 if the last scrape read all topics, else 0.")
	descScrape  = desc("scrape_seconds", "How long the scrape took.")
	descLeftOut = desc("left_out", "Topics, and groups of topics, that are not exported because of MaxGroups.")

	descMemory      = desc("redis_memory_used_bytes", "Memory that the Redis server uses.", "server")
	descMemoryLimit = desc("redis_memory_limit_bytes", "Memory that the Redis server may use: maxmemory. 0 is no limit.", "server")

	descEvicted = desc("redis_evicted_keys_total", "Keys that the Redis server evicted since it started.", "server")

	descStored       = desc("stored_messages", "Messages of the topic, each counted once, whatever the number of groups.", "topic")
	descWaiting      = desc("waiting_messages", "Messages that wait for their due time.", "topic")
	descNextDue      = desc("next_due_timestamp_seconds", "The first due time of these.", "topic")
	descOverdue      = desc("overdue_seconds", "How long that has passed, without a scheduler that made the message ready.", "topic")
	descScheduled    = desc("scheduled", "1 if a scheduler is the topic's holder and is less than a second late.", "topic")
	descFailing      = desc("scheduler_failing", "1 if a scheduler of the topic has failed since the due-time work was last done.", "topic")
	descPublished    = desc("published_messages_total", "Messages that the topic took.", "topic")
	descReplaced     = desc("replaced_messages_total", "Messages that later ones with their delay ID replaced.", "topic")
	descLeftOutNames = desc("left_out_messages_total", "Messages that were not published because their delay ID was taken.", "topic")
	descRefused      = desc("refused_messages_total", "Messages that were not published because the topic was full.", "topic")
	descPaused       = desc("paused_timestamp_seconds", "Since when the group is paused, or the topic if group is empty.", "topic", "group")

	descMessages    = desc("messages", "Messages of the group by state: ready, in_hand, retrying, dead.", "topic", "group", "state")
	descOldest      = desc("oldest_ready_seconds", "How long the next ready message has been due.", "topic", "group")
	descSuspects    = desc("suspects", "Messages that have lost a lease since they were last nacked.", "topic", "group")
	descSubscribed  = desc("subscribed", "1 if a subscription waits for messages of the group or holds one.", "topic", "group")
	descLimited     = desc("limited", "1 if messages of the group wait because of its limit, else 0.", "topic", "group")
	descMaxLateness = desc("lateness_max_seconds", "The longest time from due to delivery of the last one to two hours.", "topic", "group")
	descNextRetry   = desc("next_retry_timestamp_seconds", "When the next retry is due.", "topic", "group")
	descOldestDead  = desc("oldest_dead_timestamp_seconds", "When the oldest dead letter died.", "topic", "group")
	descLastSeen    = desc("last_seen_timestamp_seconds", "When a subscription last claimed or settled messages.", "topic", "group")

	descLateness   = desc("lateness_seconds", "Deliveries by the time from due to delivery. The sum is a lower bound.", "topic", "group")
	descDelivered  = desc("delivered_messages_total", "Deliveries.", "topic", "group")
	descAcked      = desc("acked_messages_total", "Deliveries that were acked.", "topic", "group")
	descNacked     = desc("nacked_messages_total", "Deliveries that were nacked.", "topic", "group")
	descRetried    = desc("retried_messages_total", "Nacked messages that waited for a retry.", "topic", "group")
	descSkipped    = desc("skipped_occurrences_total", "Occurrences of recurring schedules that were acked unhandled, because another one was in hand.", "topic", "group")
	descDropped    = desc("dropped_messages_total", "Messages that expired and were dropped.", "topic", "group")
	descExpired    = desc("expired_leases_total", "Leases that ended before their messages were settled.", "topic", "group")
	descDisowned   = desc("disowned_leases_total", "Expired leases that were ended because their processes were gone.", "topic", "group")
	descSuspected  = desc("suspected_messages_total", "Messages that became suspects.", "topic", "group")
	descLeaseLost  = desc("lost_leases_total", "Leases that were lost while a handler had the message.", "topic", "group")
	descGivenUp    = desc("given_up_messages_total", "Messages that handlers had not settled within CloseTimeout.", "topic", "group")
	descStopped    = desc("limited_claims_total", "Claims that the group's limit left with less than they asked for.", "topic", "group")
	descHeldBack   = desc("limited_seconds_total", "Time in which messages of the group waited because of its limit.", "topic", "group")
	descDead       = desc("dead_messages_total", "Messages that died, by cause: deliveries, lease, asked, late, unmarshal, killed.", "topic", "group", "cause")
	descDeadPurged = desc("dead_purged_messages_total", "Dead letters that were deleted because of MaxDead.", "topic", "group")

	descHistoryFailed = desc("history_failed_lines_total", "Lines that a history lacks, or has without the UUID or for too long, because a Redis user lacks a command. An empty group has those of cancelled and replaced messages.", "topic", "group")

	descScheduleLast       = desc("schedule_last_timestamp_seconds", "When the last occurrence of the recurring schedule was due.", "topic", "schedule")
	descScheduleNext       = desc("schedule_next_timestamp_seconds", "When the next one is due. It has no series while the schedule is paused, or if it has ended.", "topic", "schedule")
	descScheduleOverdue    = desc("schedule_overdue_seconds", "How long an occurrence has been due that no program has published.", "topic", "schedule")
	descScheduleMissed     = desc("schedule_missed_occurrences_total", "Occurrences that were missed. A program counts them when it publishes again.", "topic", "schedule")
	descSchedulePaused     = desc("schedule_paused_timestamp_seconds", "Since when the schedule is paused.", "topic", "schedule")
	descRefusedOccurrences = desc("refused_occurrences_total", "Occurrences of recurring schedules that were made too late, or whose schedule or server's clock had changed.", "topic")
	descSchedulesLeftOut   = desc("schedules_left_out", "Schedules that are not exported because of MaxSchedules.")
)
