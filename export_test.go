package redisdelay

// Waiting is how many calls of Publish wait in a topic's line.
func Waiting(p *Publisher, topic string) int {
	p.mu.Lock()
	l := p.lines[topic]
	p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}
