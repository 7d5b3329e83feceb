package redisdelay

// Waiting is how many calls of Publish wait in a topic's line.
func Waiting(p *Publisher, topic string) int { return p.engine.Waiting(topic) }
