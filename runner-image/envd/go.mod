module seatrial.dev/envd

go 1.25
