package emulink

import "math/rand/v2"

// fate describes what the impairments do to one packet.
type fate struct {
	lost      bool
	late      bool // held back, so that later packets overtake it
	twice     bool // a copy arrives right behind it
	corrupted bool // its data was changed; checksums detect it
	tampered  bool // its data was changed and TCP's checksum corrected
}

// impairer draws the fates of a pipe's packets. Each impairment has its own generator, so that turning one on
// does not change the draws of another.
type impairer struct {
	jitter, loss, burst, reorder, duplicate, corrupt, tamper *rand.PCG

	inBurst bool // in the bad state of the Gilbert–Elliott model
}

// newImpairer returns an impairer. Impairers with the same seed and different numbers draw different random numbers.
func newImpairer(seed, number uint64) impairer {
	stream := func(impairment uint64) *rand.PCG { return rand.NewPCG(seed, impairment<<32|number) }
	return impairer{
		loss: rand.NewPCG(seed, 2*number), jitter: rand.NewPCG(seed, 2*number+1),
		burst: stream(1), reorder: stream(2), duplicate: stream(3), corrupt: stream(4), tamper: stream(5),
	}
}

// draw returns the fate of a packet, and changes its data if the fate includes that.
func (l *impairer) draw(p Params, data []byte) fate {
	if l.isLost(p) {
		return fate{lost: true}
	}
	return fate{
		late:      chance(l.reorder, p.Reorder),
		twice:     chance(l.duplicate, p.Duplicate),
		corrupted: p.Corrupt > 0 && chance(l.corrupt, p.Corrupt) && flipBit(data, l.corrupt),
		tampered:  p.Tamper > 0 && l.tampers(p.Tamper, data),
	}
}

// isLost advances the burst model by one packet and reports whether this packet is lost. It always draws for both kinds
// of loss, so that neither affects the other's sequence of random numbers.
func (l *impairer) isLost(p Params) bool {
	byChance := chance(l.loss, p.Loss)
	switch {
	case p.Burst == 0:
		l.inBurst = false
	case l.inBurst:
		l.inBurst = !chance(l.burst, 1/p.burstLength())
	default:
		l.inBurst = chance(l.burst, p.Burst)
	}
	return l.inBurst && chance(l.burst, p.burstLoss()) || byChance
}

func (l *impairer) tampers(share float64, data []byte) bool {
	segment, payload, ok := tcpPayload(data)
	if !ok || !chance(l.tamper, share) {
		return false
	}
	changeByte(segment, payload, l.tamper)
	return true
}

// chance returns true with probability p. It draws nothing if p is 0.
func chance(draws *rand.PCG, p float64) bool {
	return p > 0 && float64(draws.Uint64()>>11)/(1<<53) < p
}

// below returns a random number from 0 to n-1. Its bias is negligible for small n.
func below(draws *rand.PCG, n int) int { return int(draws.Uint64() % uint64(n)) }
