package queue

// SlotCount is the number of slots of a Redis Cluster.
const SlotCount = 16384

// Slot returns the slot that all keys of a topic are in, in a Redis Cluster.
func Slot(topic string) int { return SlotHash(0).Add(topic).Slot() }

// SlotHash is the hash of the beginning of a topic's name, CRC16/XMODEM. It is 0 for no characters.
type SlotHash uint16

// Add returns the hash with more characters of the name.
func (h SlotHash) Add(part string) SlotHash {
	encoded := encodeTopic(part)
	for i := range len(encoded) {
		h = h<<8 ^ slotTable[byte(h>>8)^encoded[i]]
	}
	return h
}

// Slot returns the slot of the topic whose whole name was added.
func (h SlotHash) Slot() int { return int(h % SlotCount) }

var slotTable = func() (table [256]SlotHash) {
	for i := range table {
		h := SlotHash(i) << 8
		for range 8 {
			if h&0x8000 != 0 {
				h = h<<1 ^ 0x1021
			} else {
				h <<= 1
			}
		}
		table[i] = h
	}
	return table
}()
