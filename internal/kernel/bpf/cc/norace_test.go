//go:build !race

package cc

const raceDetector = false
